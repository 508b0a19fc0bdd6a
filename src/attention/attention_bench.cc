// Attention against reading the same memory and against ggml_flash_attn_ext as llama.cpp calls it
// (token-major f16 K and V). Figures are the best of a number of interleaved runs, and ratios: machines
// are noisy. Each decode step reads another copy of the cache, so it comes from memory.
// Recipe: attention_attention_bench [decode|prefill] [context] [runs]
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "attention/attention.h"
#include "base/ledger.h"
#include "ggml-cpu.h"
#include "ggml.h"
#include "kernel/half.h"

namespace reprise {
namespace {

constexpr uint32_t kBlockTokens = 32;
constexpr uint64_t kCacheBytes = uint64_t{96} << 20;  // beyond any cache
constexpr uint32_t kPrefillRows = 512;

struct Heads {
  uint32_t query_heads, kv_heads, dim;
};
constexpr Heads kHeads[] = {{14, 2, 64}, {12, 2, 128}, {9, 3, 64}, {4, 1, 256}, {32, 8, 128}};

double Seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

template <class F>
double Timed(F f) {
  const double start = Seconds();
  f();
  return Seconds() - start;
}

volatile uint64_t sink;

// ggml's attention over one copy of the cache.
class Ggml {
 public:
  Ggml(const Heads& heads, uint32_t tokens, uint32_t rows, std::byte* cache, int threads)
      : context_(ggml_init({Bytes(heads, tokens, rows), nullptr, false}), ggml_free) {
    ggml_context* c = context_.get();
    ggml_tensor* q = ggml_new_tensor_3d(c, GGML_TYPE_F32, heads.dim, heads.query_heads, rows);
    ggml_tensor* mask = ggml_new_tensor_2d(c, GGML_TYPE_F16, tokens, rows);
    auto* m = static_cast<uint16_t*>(mask->data);
    for (uint32_t r = 0; r < rows; ++r) {
      for (uint32_t t = 0; t < tokens; ++t) m[uint64_t{r} * tokens + t] = t <= tokens - rows + r ? 0 : 0xfc00;
    }
    std::fill_n(static_cast<float*>(q->data), ggml_nelements(q), 0.25f);
    ggml_set_no_alloc(c, true);
    k_ = ggml_new_tensor_3d(c, GGML_TYPE_F16, heads.dim, heads.kv_heads, tokens);
    v_ = ggml_new_tensor_3d(c, GGML_TYPE_F16, heads.dim, heads.kv_heads, tokens);
    k_->data = cache;
    v_->data = cache + ggml_nbytes(k_);
    ggml_tensor* out = ggml_flash_attn_ext(c, ggml_permute(c, q, 0, 2, 1, 3), ggml_permute(c, k_, 0, 2, 1, 3),
                                           ggml_permute(c, v_, 0, 2, 1, 3), mask,
                                           1.0f / std::sqrt(static_cast<float>(heads.dim)), 0.0f, 0.0f);
    for (int i = 0; i < 3; ++i) out->src[i]->data = out->src[i]->view_src->data;
    out_.resize(ggml_nelements(out));
    out->data = out_.data();
    ggml_set_no_alloc(c, false);
    graph_ = ggml_new_graph(c);
    ggml_build_forward_expand(graph_, out);
    const ggml_threadpool_params params = ggml_threadpool_params_default(threads);
    pool_ = ggml_threadpool_new(const_cast<ggml_threadpool_params*>(&params));
    plan_ = ggml_graph_plan(graph_, threads, pool_);
    work_.resize(plan_.work_size + 64);
    plan_.work_data = work_.data();
  }
  ~Ggml() { ggml_threadpool_free(pool_); }

  void Run() {
    if (ggml_graph_compute(graph_, &plan_) != GGML_STATUS_SUCCESS) std::abort();
  }

 private:
  static size_t Bytes(const Heads& heads, uint32_t tokens, uint32_t rows) {
    return uint64_t{rows} * (heads.query_heads * heads.dim * 4 + tokens * 2) + (size_t{1} << 20);
  }
  std::unique_ptr<ggml_context, void (*)(ggml_context*)> context_;
  ggml_tensor* k_ = nullptr;
  ggml_tensor* v_ = nullptr;
  ggml_cgraph* graph_ = nullptr;
  ggml_threadpool* pool_ = nullptr;
  ggml_cplan plan_{};
  std::vector<float> out_;
  std::vector<uint8_t> work_;
};

// The same number of tokens through Attend, copy after copy of a cache in shuffled slots.
struct Bench {
  Heads heads;
  uint32_t rows, tokens;
  std::span<std::byte> cache;
  uint64_t copy_bytes = uint64_t{tokens} * heads.kv_heads * heads.dim * 4;
  uint32_t copies = static_cast<uint32_t>(std::max<uint64_t>(1, cache.size() / copy_bytes));
  KvLayerView kv{.base = cache.data(),
                 .slot_stride = uint64_t{kBlockTokens} * heads.kv_heads * heads.dim * 4,
                 .value_offset = uint64_t{kBlockTokens} * heads.kv_heads * heads.dim * 2,
                 .kv_heads = heads.kv_heads,
                 .key_dim = heads.dim,
                 .value_dim = heads.dim,
                 .block_tokens = kBlockTokens};
  AttentionShape shape{heads.query_heads, 0, 1.0f / std::sqrt(static_cast<float>(heads.dim)), 0.0f};
  std::vector<SlotId> slots{};
  std::vector<float> q{}, out{};
  Ledger ledger{uint64_t{1} << 30};

  void Prepare() {
    for (uint32_t i = 0; i < copies * (tokens / kBlockTokens); ++i) slots.push_back(SlotId(i));
    std::shuffle(slots.begin(), slots.end(), std::mt19937_64(1));
    q.assign(uint64_t{rows} * heads.query_heads * heads.dim, 0.25f);
    out.resize(q.size());
  }

  // Copy 0 is what ggml reads, so that it may be in a cache.
  uint32_t Copy(uint32_t i) const { return copies > 1 ? 1 + i % (copies - 1) : 0; }

  double Attend(WorkerPool& pool, Isa isa, uint32_t copy, std::span<std::byte> scratch) {
    const uint32_t blocks = tokens / kBlockTokens;
    const AttentionSlice slice{0, rows, tokens - rows, std::span(slots).subspan(Copy(copy) * blocks, blocks)};
    const uint32_t stride = heads.query_heads * heads.dim;
    return Timed([&] {
      reprise::Attend({&pool, isa}, shape, kv, {&slice, 1}, q.data(), stride, out.data(), stride, scratch);
    });
  }

  double ReadMemory(WorkerPool& pool, uint32_t copy) {
    const auto* from = reinterpret_cast<const uint64_t*>(cache.data() + Copy(copy) * copy_bytes);
    const uint32_t pieces = 16;
    const uint64_t words = copy_bytes / 8 / pieces;
    return Timed([&] {
      pool.Run(pieces, [&](uint32_t piece, uint32_t) {
        uint64_t sum[8] = {};
        for (uint64_t i = 0; i + 8 <= words; i += 8) {
          for (uint32_t j = 0; j < 8; ++j) sum[j] += from[piece * words + i + j];
        }
        for (const uint64_t s : sum) sink = sink + s;
      });
    });
  }

  void Run(uint32_t threads, uint32_t runs) {
    WorkerPool pool(threads);
    const Region scratch =
        ledger.Take("scratch", AttendScratchBytes(shape, heads.dim, heads.dim, rows, tokens, threads));
    Ggml ggml(heads, tokens, rows, cache.data(), static_cast<int>(threads));
    double avx2 = 1e9, avx512 = 1e9, memory = 1e9, peer = 1e9;
    for (uint32_t i = 0; i < runs; ++i) {
      memory = std::min(memory, ReadMemory(pool, 3 * i));
      if (Supported(Isa::kAvx2)) avx2 = std::min(avx2, Attend(pool, Isa::kAvx2, 3 * i + 1, scratch.bytes()));
      if (Supported(Isa::kAvx512)) avx512 = std::min(avx512, Attend(pool, Isa::kAvx512, 3 * i + 2, scratch.bytes()));
      // ggml has one copy, so in decode it may be in a cache; that favours it.
      peer = std::min(peer, Timed([&] { ggml.Run(); }));
    }
    double products = 0.0;
    for (uint32_t r = 0; r < rows; ++r) products += 4.0 * (tokens - rows + r + 1) * heads.query_heads * heads.dim;
    const double best = std::min(avx2, avx512);
    std::printf("%2u %2u %3u  %6u  %u  %9.1f %9.1f  %6.1f %6.1f  %5.2f  %7.1f  %5.2f\n", heads.query_heads,
                heads.kv_heads, heads.dim, tokens, threads, avx2 * 1e6, avx512 * 1e6,
                static_cast<double>(copy_bytes) / best / 1e9, static_cast<double>(copy_bytes) / memory / 1e9,
                memory / best, products / best / 1e9, peer / best);
    std::fflush(stdout);
  }
};

int Main(int argc, char** argv) {
  const bool prefill = argc > 1 && std::string(argv[1]) == "prefill";
  const uint32_t context = argc > 2 ? static_cast<uint32_t>(std::atoi(argv[2])) / kBlockTokens * kBlockTokens : 8192;
  const uint32_t runs = argc > 3 ? static_cast<uint32_t>(std::atoi(argv[3])) : 30;
  const uint32_t rows = prefill ? kPrefillRows : 1;
  Ledger ledger(uint64_t{4} << 30);
  const uint64_t largest = uint64_t{context + rows + kBlockTokens} * 8 * 128 * 4;
  const Region cache = ledger.Take("cache", std::max(kCacheBytes, largest));
  std::mt19937_64 random(1);
  std::normal_distribution<float> normal;
  auto* values = reinterpret_cast<uint16_t*>(cache.bytes().data());
  constexpr uint64_t kPattern = 1 << 20;
  for (uint64_t i = 0; i < cache.bytes().size() / 2; ++i)
    values[i] = i < kPattern ? F16OfFloat(normal(random)) : values[i - kPattern];

  std::puts("q kv dim  tokens  threads  avx2/us avx512/us  GB/s  memory  share  GFLOP/s  x ggml");
  for (const Heads& heads : kHeads) {
    for (const uint32_t threads : {1u, 2u}) {
      Bench bench{.heads = heads, .rows = rows, .tokens = prefill ? context + rows : context, .cache = cache.bytes()};
      bench.Prepare();
      bench.Run(threads, runs);
    }
  }
  return 0;
}

}  // namespace
}  // namespace reprise

int main(int argc, char** argv) { return reprise::Main(argc, argv); }
