// Products beside ggml's on the same weights, interleaved in one run: for each format, shape and number
// of inputs the median time of every instruction set and of ggml's plain and repacked paths, as ratios.
//
//   kernel_matmul_bench [--types=Q4_K,Q6_K] [--shapes=1536x8960,8960x1536] [--inputs=1,8,512]
//                       [--threads=2] [--seconds=0.5]
//
// Shapes are columns x rows. Trust ratios of one run, not single figures (COMPUTE 3).
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "base/bytes.h"
#include "base/check.h"
#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml-cpp.h"
#include "ggml-cpu.h"
#include "ggml.h"
#include "kernel/matmul.h"

namespace reprise {
namespace {

struct Options {
  std::vector<std::string> types = {"Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "F16"};
  std::vector<std::string> shapes = {"1536x8960"};
  std::vector<std::string> inputs = {"1", "8", "512"};
  std::string threads = "2";
  std::string seconds = "0.5";
};

Options ParseOptions(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::vector<std::string> parts = absl::StrSplit(argv[i], absl::MaxSplits('=', 1));
    CHECK_EQ(parts.size(), 2u);
    if (parts[0] == "--types") options.types = absl::StrSplit(parts[1], ',');
    if (parts[0] == "--shapes") options.shapes = absl::StrSplit(parts[1], ',');
    if (parts[0] == "--inputs") options.inputs = absl::StrSplit(parts[1], ',');
    if (parts[0] == "--threads") options.threads = parts[1];
    if (parts[0] == "--seconds") options.seconds = parts[1];
  }
  return options;
}

double Seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

struct Shape {
  WeightType type;
  uint32_t cols, rows, inputs, threads;
};

std::vector<float> Wave(size_t count, float scale) {  // deterministic, not periodic in any block size
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i)
    values[i] = scale * static_cast<float>((i * 2654435761u >> 7) % 2001) / 1000.0f - scale;
  return values;
}

// Enough copies of the weights that one input reads them from memory, not from a cache.
constexpr uint64_t kWeightBytes = 160 << 20;
uint32_t CopiesOf(const Shape& shape, uint64_t bytes) {
  if (shape.inputs > 8) return 1;
  return static_cast<uint32_t>(std::max<uint64_t>(1, kWeightBytes / bytes));
}

class OursRun {
 public:
  OursRun(const Shape& shape, const std::vector<std::byte>& gguf, const std::vector<float>& x)
      : shape_(shape), x_(x), pool_(shape.threads), out_(size_t{shape.inputs} * shape.rows) {
    const uint64_t bytes = RoundUp(PackedBytes(shape.type, shape.rows, shape.cols), 64);
    const uint32_t copies = CopiesOf(shape, bytes);
    memory_.resize(bytes * copies + MultiplyScratchBytes(shape.inputs, shape.cols, shape.threads) + 64);
    std::byte* at = memory_.data() + (64 - reinterpret_cast<uintptr_t>(memory_.data()) % 64);
    for (uint32_t i = 0; i < copies; ++i, at += bytes) {
      weights_.push_back({shape.type, shape.rows, shape.cols, at});
      PackGroups(weights_[i], gguf.data(), 0, static_cast<uint32_t>(CeilDiv(shape.rows, 16)));
    }
    scratch_ = {at, MultiplyScratchBytes(shape.inputs, shape.cols, shape.threads)};
  }
  double Time(Isa isa) {
    const double start = Seconds();
    for (const PackedWeight& weight : weights_) {
      const Product product{&weight, nullptr, out_.data(), shape_.rows};
      Multiply({&pool_, isa}, x_.data(), shape_.cols, shape_.inputs, {&product, 1}, scratch_);
    }
    return (Seconds() - start) / static_cast<double>(weights_.size());
  }

 private:
  const Shape shape_;
  const std::vector<float>& x_;
  WorkerPool pool_;
  std::vector<float> out_;
  std::vector<std::byte> memory_;
  std::vector<PackedWeight> weights_;
  std::span<std::byte> scratch_;
};

ggml_backend_buffer_type_t RepackBuffers() {
  ggml_backend_reg_t registry = ggml_backend_cpu_reg();
  const auto extra = reinterpret_cast<ggml_backend_dev_get_extra_bufts_t>(
      ggml_backend_reg_get_proc_address(registry, "ggml_backend_dev_get_extra_bufts"));
  if (extra == nullptr) return nullptr;
  for (ggml_backend_buffer_type_t* type = extra(ggml_backend_reg_dev_get(registry, 0)); *type != nullptr; ++type) {
    if (std::strcmp(ggml_backend_buft_name(*type), "CPU_REPACK") == 0) return *type;
  }
  return nullptr;
}

// A graph of one product per copy of the weights.
class GgmlRun {
 public:
  // `buffers` decides the path: plain or repacked. ok() is false if the path does not know the type.
  GgmlRun(const Shape& shape, const std::vector<std::byte>& gguf, const std::vector<float>& x,
          ggml_backend_buffer_type_t buffers)
      : backend_(ggml_backend_cpu_init()) {
    const uint32_t copies = CopiesOf(shape, gguf.size());
    weights_.reset(ggml_init({ggml_tensor_overhead() * (copies + 1), nullptr, true}));
    const size_t values = size_t{shape.inputs} * (shape.cols + size_t{shape.rows} * copies);
    graph_memory_.reset(ggml_init({values * 4 + (16 << 20), nullptr, false}));
    ggml_tensor* input = ggml_new_tensor_2d(graph_memory_.get(), GGML_TYPE_F32, shape.cols, shape.inputs);
    std::memcpy(input->data, x.data(), x.size() * sizeof(float));
    graph_ = ggml_new_graph_custom(graph_memory_.get(), copies + 16, false);
    for (uint32_t i = 0; i < copies; ++i) {
      ggml_tensor* weight =
          ggml_new_tensor_2d(weights_.get(), static_cast<ggml_type>(shape.type), shape.cols, shape.rows);
      buffers_.emplace_back(
          ggml_backend_buft_alloc_buffer(buffers, ggml_backend_buft_get_alloc_size(buffers, weight) + 256));
      ggml_backend_tensor_alloc(buffers_.back().get(), weight, ggml_backend_buffer_get_base(buffers_.back().get()));
      if (buffers != ggml_backend_cpu_buffer_type() && weight->extra == nullptr) return;
      ggml_backend_tensor_set(weight, gguf.data(), 0, gguf.size());
      ggml_build_forward_expand(graph_, ggml_mul_mat(graph_memory_.get(), weight, input));
    }
    ggml_backend_cpu_set_n_threads(backend_.get(), static_cast<int>(shape.threads));
    copies_ = copies;
  }
  bool ok() const { return copies_ > 0; }
  double Time() {
    const double start = Seconds();
    CHECK(ggml_backend_graph_compute(backend_.get(), graph_) == GGML_STATUS_SUCCESS);
    return (Seconds() - start) / copies_;
  }

 private:
  ggml_backend_ptr backend_;
  ggml_context_ptr weights_, graph_memory_;
  std::vector<ggml_backend_buffer_ptr> buffers_;
  ggml_cgraph* graph_ = nullptr;
  uint32_t copies_ = 0;
};

struct Contender {
  std::string name;
  std::function<double()> time;
  std::vector<double> seconds;

  double median() {
    std::nth_element(seconds.begin(), seconds.begin() + static_cast<ptrdiff_t>(seconds.size() / 2), seconds.end());
    return seconds[seconds.size() / 2];
  }
};

void Compare(const Shape& shape, double seconds) {
  const std::vector<float> values = Wave(size_t{shape.rows} * shape.cols, 0.05f);
  const std::vector<float> x = Wave(size_t{shape.inputs} * shape.cols, 1.0f);
  std::vector<std::byte> gguf(RowBytes(shape.type, shape.cols) * shape.rows);
  ggml_quantize_chunk(static_cast<ggml_type>(shape.type), values.data(), gguf.data(), 0, shape.rows, shape.cols,
                      nullptr);

  OursRun ours(shape, gguf, x);
  GgmlRun plain(shape, gguf, x, ggml_backend_cpu_buffer_type());
  std::unique_ptr<GgmlRun> repacked;
  if (RepackBuffers() != nullptr) repacked = std::make_unique<GgmlRun>(shape, gguf, x, RepackBuffers());

  std::vector<Contender> contenders;
  for (const Isa isa : {Isa::kAvx512, Isa::kAvx2}) {
    if (Supported(isa)) contenders.push_back({std::string(Name(isa)), [&ours, isa] { return ours.Time(isa); }, {}});
  }
  contenders.push_back({"ggml", [&plain] { return plain.Time(); }, {}});
  if (repacked != nullptr && repacked->ok())
    contenders.push_back({"ggml repacked", [&] { return repacked->Time(); }, {}});
  const double end = Seconds() + seconds;
  for (int round = 0; round < 4 || Seconds() < end; ++round) {
    for (Contender& contender : contenders) {
      const double time = contender.time();
      if (round > 0) contender.seconds.push_back(time);  // the first one warms up
    }
  }

  double best_ggml = 1e9;
  for (Contender& contender : contenders) {
    if (contender.name.starts_with("ggml")) best_ggml = std::min(best_ggml, contender.median());
  }
  std::printf("%-5s %5u x %-6u inputs %-4u", std::string(Name(shape.type)).c_str(), shape.cols, shape.rows,
              shape.inputs);
  const double operations = 2.0 * shape.cols * shape.rows * shape.inputs;
  for (Contender& contender : contenders) {
    std::printf("  %s %.1f GFLOP/s", contender.name.c_str(), operations / contender.median() * 1e-9);
    if (!contender.name.starts_with("ggml")) std::printf(" (%.2f x ggml)", best_ggml / contender.median());
  }
  if (shape.inputs == 1) std::printf("  %.1f GB/s", static_cast<double>(gguf.size()) / contenders[0].median() * 1e-9);
  std::printf("\n");
  std::fflush(stdout);
}

uint32_t Number(std::string_view text) {
  uint32_t value = 0;
  CHECK(absl::SimpleAtoi(std::string(text), &value));
  return value;
}

void Main(const Options& options) {
  double seconds = 0;
  CHECK(absl::SimpleAtod(options.seconds, &seconds));
  for (const std::string& name : options.types) {
    for (const std::string& text : options.shapes) {
      const std::vector<std::string> sides = absl::StrSplit(text, 'x');
      CHECK_EQ(sides.size(), 2u);
      for (const std::string& inputs : options.inputs) {
        for (uint32_t number = 0; number < GGML_TYPE_COUNT; ++number) {
          const auto type = static_cast<WeightType>(number);
          const Shape shape{type, Number(sides[0]), Number(sides[1]), Number(inputs), Number(options.threads)};
          if (Name(type) == name && HasKernel(type) && Multipliable(type, shape.cols)) Compare(shape, seconds);
        }
      }
    }
  }
}

}  // namespace
}  // namespace reprise

int main(int argc, char** argv) {
  ggml_log_set([](ggml_log_level, const char*, void*) {}, nullptr);  // it reports every repacked tensor
  reprise::Main(reprise::ParseOptions(argc, argv));
  return 0;
}
