#include "model/forward.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "attention/attention.h"
#include "base/carver.h"
#include "base/check.h"
#include "kernel/matmul.h"
#include "kernel/ops.h"

namespace reprise {
namespace {

AttentionShape ShapeOf(const ModelDescription& model, uint32_t layer) {
  return {.query_heads = model.query_heads, .window = model.layer_plans[layer].window, .scale = model.attention_scale};
}

uint64_t AttendBytesMax(const ModelDescription& model, const ForwardOptions& o) {
  uint64_t most = 0;
  for (uint32_t l = 0; l < model.layers; ++l)
    most = std::max(most, AttendScratchBytes(ShapeOf(model, l), model.head_dim, model.head_dim, o.batch_rows_max,
                                             o.context_max, o.threads));
  return most;
}

// Rows that adapters are applied to at once: their result of one matrix waits in scratch. With 64 the few rows of A
// would not be cut among threads: a prompt of SmolLM2 then takes 19 % longer with rank 16 everywhere, with 256 10 %.
constexpr uint32_t kAdapterRows = 256;
constexpr uint32_t kSharedInput = 3;  // products of one input: Q, K and V

uint32_t AdapterRankMax(const ModelDescription& model) {
  uint32_t most = 0;
  for (const AdapterDescription& adapter : model.adapters) most = std::max(most, adapter.rank_max);
  return most;
}

uint64_t AdapterResultsMax(const ModelDescription& model) {
  uint64_t most = 0;
  for (const AdapterDescription& adapter : model.adapters)
    for (const TensorSource& tensor : adapter.tensors)
      most = std::max<uint64_t>(most, tensor.rows * (tensor.part == Part::kHead ? uint64_t{1} : kAdapterRows));
  return most;
}

Product ProductOf(const PackedWeight& weight, std::span<const float> bias, std::span<float> out) {
  return {&weight, bias.empty() ? nullptr : bias.data(), out.data(), weight.rows};
}

}  // namespace

// Rows are tokens of the batch, in slice order.
struct ForwardPass::Layout {
  std::span<float> x;                // [rows, width], the residual stream
  std::span<float> normed;           // [rows, width]
  std::span<float> q;                // [rows, query_heads, head_dim]
  std::span<float> k;                // [rows, kv_heads, head_dim]
  std::span<float> v;                // [rows, kv_heads, head_dim]
  std::span<float> attended;         // [rows, query_heads, head_dim]
  std::span<float> gate;             // [rows, feed_forward]
  std::span<float> up;               // [rows, feed_forward]
  std::span<float> delta;            // [rows, width], what a layer adds to x
  std::span<float> logits;           // [logits rows, vocab]
  std::span<float> angles;           // [ropes, rows, dims]
  std::span<uint32_t> positions;     // [rows]
  std::span<AttentionSlice> all;     // [groups, slices]
  std::span<AttentionSlice> wanted;  // [slices], of the last layer's group: rows whose logits are wanted
  std::span<uint8_t> finite;         // [slices]
  std::span<AdapterRun> runs;        // [slices]
  std::span<float> adapter_inner;    // [kSharedInput, kAdapterRows, rank]
  std::span<float> adapter_outer;    // [rows, rows of a matrix], as many rows as fit
  std::span<std::byte> multiply_scratch;
  std::span<std::byte> attend_scratch;

  Layout(const ModelDescription& model, const ForwardOptions& o, Carver& carver) {
    const uint64_t rows = o.batch_rows_max;
    const uint64_t queries = uint64_t{model.query_heads} * model.head_dim;
    const uint64_t keys = uint64_t{model.kv_heads} * model.head_dim;
    const uint32_t rank_max = AdapterRankMax(model);
    const uint32_t cols_max = std::max({model.width, static_cast<uint32_t>(queries), model.feed_forward, rank_max});
    x = carver.Array<float>(rows * model.width);
    normed = carver.Array<float>(rows * model.width);
    q = carver.Array<float>(rows * queries);
    k = carver.Array<float>(rows * keys);
    v = carver.Array<float>(rows * keys);
    attended = carver.Array<float>(rows * queries);
    gate = carver.Array<float>(rows * model.feed_forward);
    up = carver.Array<float>(rows * model.feed_forward);
    delta = carver.Array<float>(rows * model.width);
    logits = carver.Array<float>(uint64_t{o.logits_rows_max} * model.vocab_size);
    angles = carver.Array<float>(model.ropes.size() * rows * model.ropes[0].dims);
    positions = carver.Array<uint32_t>(rows);
    all = carver.Array<AttentionSlice>(model.geometry.groups.size() * o.slices_max);
    wanted = carver.Array<AttentionSlice>(o.slices_max);
    finite = carver.Array<uint8_t>(o.slices_max);
    runs = carver.Array<AdapterRun>(o.slices_max);
    adapter_inner = carver.Array<float>(uint64_t{kSharedInput} * kAdapterRows * rank_max);
    adapter_outer = carver.Array<float>(AdapterResultsMax(model));
    multiply_scratch = carver.Array<std::byte>(MultiplyScratchBytes(o.batch_rows_max, cols_max, o.threads));
    attend_scratch = carver.Array<std::byte>(AttendBytesMax(model, o));
  }
};

std::vector<Footprint> ForwardPass::Footprints(const ModelDescription& model, const ForwardOptions& options) {
  return {{"activations", Measure<Layout>(model, options)}};
}

ForwardPass::ForwardPass(const ModelDescription& model, const ModelWeights& weights, const ForwardOptions& options,
                         std::span<const KvGroupView> groups, const Compute& compute, Ledger& ledger)
    : model_(model),
      weights_(weights),
      options_(options),
      compute_(compute),
      region_(ledger.Take("activations", Measure<Layout>(model, options))),
      layout_(std::make_unique<Layout>(Carve<Layout>(region_, model, options))) {
  CHECK_EQ(compute.pool->threads(), options.threads);
  CHECK_EQ(groups.size(), model.geometry.groups.size());
  for (const LayerPlan& plan : model.layer_plans)
    kv_.push_back(LayerView(model.geometry, plan.group, groups[plan.group.value()], plan.index_in_group));
}

ForwardPass::~ForwardPass() = default;

std::span<const uint8_t> ForwardPass::finite() const { return layout_->finite.first(slices_); }

absl::StatusOr<std::span<const float>> ForwardPass::Run(const Batch& batch) {
  Plan(batch);
  Embed(batch);
  for (uint32_t layer = 0; layer < model_.layers; ++layer) {
    Attention(batch, layer);
    FeedForward(layer);
  }
  JudgeResidual();
  Head();
  return std::span<const float>(layout_->logits).first(uint64_t{rows_wanted_} * model_.vocab_size);
}

// Where each slice's rows are, and which of them are wanted in the end.
void ForwardPass::Plan(const Batch& batch) {
  const uint32_t groups = static_cast<uint32_t>(model_.geometry.groups.size());
  const uint32_t last_group = model_.layer_plans.back().group.value();
  slices_ = static_cast<uint32_t>(batch.slices.size());
  CHECK_LE(slices_, options_.slices_max);
  rows_ = 0;
  rows_wanted_ = 0;
  for (uint32_t s = 0; s < slices_; ++s) {
    const BatchSlice& slice = batch.slices[s];
    const uint32_t rows = static_cast<uint32_t>(slice.tokens.size());
    CHECK_LE(slice.logits_rows, rows);
    CHECK_LE(rows, options_.batch_rows_max - rows_);
    CHECK_LE(uint64_t{slice.first_position} + rows, options_.context_max);
    CHECK_EQ(slice.tables.size(), groups);
    for (const AdapterUse& use : slice.adapters) CHECK_LT(use.adapter, weights_.adapter_infos().size());
    for (uint32_t g = 0; g < groups; ++g)
      layout_->all[g * options_.slices_max + s] = {rows_, rows, slice.first_position, slice.tables[g]};
    const uint32_t dropped = rows - slice.logits_rows;
    layout_->wanted[s] = {rows_ + dropped, slice.logits_rows, slice.first_position + dropped, slice.tables[last_group]};
    for (uint32_t r = 0; r < rows; ++r) layout_->positions[rows_ + r] = slice.first_position + r;
    rows_ += rows;
    rows_wanted_ += slice.logits_rows;
  }
  CHECK_LT(0u, rows_);
  CHECK_LE(rows_wanted_, options_.logits_rows_max);
  PlanAdapters(batch, layout_->all.first(slices_));
  std::fill_n(layout_->finite.begin(), slices_, uint8_t{1});
}

// x = the tokens' rows of the embedding; the angles of their positions, once for all layers.
void ForwardPass::Embed(const Batch& batch) {
  Layout& l = *layout_;
  for (uint32_t s = 0; s < slices_; ++s) {
    const std::span<const TokenId> tokens = batch.slices[s].tokens;
    const uint32_t first_row = l.all[s].first_row;
    compute_.pool->Run(static_cast<uint32_t>(tokens.size()), [&](uint32_t r, uint32_t) {
      CHECK_LT(static_cast<uint32_t>(tokens[r].value()), model_.vocab_size);
      DequantizePackedRow(weights_.embedding(), static_cast<uint32_t>(tokens[r].value()),
                          l.x.subspan(uint64_t{first_row + r} * model_.width, model_.width));
    });
  }
  if (model_.embedding_scale != 1.0f)
    ScaleRows(compute_, l.x.data(), model_.embedding_scale, uint64_t{rows_} * model_.width);

  const uint32_t dims = model_.ropes[0].dims;
  compute_.pool->Run(rows_, [&](uint32_t r, uint32_t) {
    for (size_t i = 0; i < model_.ropes.size(); ++i)
      RopeTable(model_.ropes[i], l.positions[r], l.angles.data() + (i * options_.batch_rows_max + r) * dims);
  });
}

// x += W_o attention(rope(norm(W_q n)), rope(norm(W_k n)), W_v n) with n = norm(x).
void ForwardPass::Attention(const Batch& batch, uint32_t layer) {
  Layout& l = *layout_;
  const LayerWeights& w = weights_.layer(layer);
  const LayerPlan& plan = model_.layer_plans[layer];
  const uint32_t queries = model_.query_heads * model_.head_dim;
  const uint32_t keys = model_.kv_heads * model_.head_dim;
  const bool last = layer + 1 == model_.layers;

  RmsNorm(compute_, l.x.data(), l.normed.data(), rows_, model_.width, model_.width, w.attention_norm,
          model_.norm_epsilon);
  const std::array<Product, 3> qkv = {ProductOf(w.query, w.query_bias, l.q), ProductOf(w.key, w.key_bias, l.k),
                                      ProductOf(w.value, w.value_bias, l.v)};
  Multiply(compute_, l.normed.data(), model_.width, rows_, qkv, l.multiply_scratch);
  AddAdapters(layer, {{Part::kQuery, Part::kKey, Part::kValue}}, l.normed.data(), model_.width, qkv);

  if (!w.query_norm.empty()) {
    RmsNormHeads(compute_, l.q.data(), rows_, model_.query_heads, model_.head_dim, queries, w.query_norm,
                 model_.norm_epsilon);
    RmsNormHeads(compute_, l.k.data(), rows_, model_.kv_heads, model_.head_dim, keys, w.key_norm, model_.norm_epsilon);
  }
  const RopeParameters& rope = model_.ropes[plan.rope];
  const float* angles = l.angles.data() + uint64_t{plan.rope} * options_.batch_rows_max * rope.dims;
  Rope(compute_, rope, angles, l.q.data(), rows_, model_.query_heads, model_.head_dim, queries);
  Rope(compute_, rope, angles, l.k.data(), rows_, model_.kv_heads, model_.head_dim, keys);

  const std::span<const AttentionSlice> slices = l.all.subspan(plan.group.value() * options_.slices_max, slices_);
  JudgeKv();
  WriteKv(compute_, kv_[layer], slices, l.k.data(), keys, l.v.data(), keys);
  // Behind the last layer's K and V only the wanted rows go on.
  Attend(compute_, ShapeOf(model_, layer), kv_[layer], last ? l.wanted.first(slices_) : slices, l.q.data(), queries,
         l.attended.data(), queries, l.attend_scratch);
  if (last) KeepWantedRows(batch);

  const Product output = ProductOf(w.output, w.output_bias, l.delta);
  if (rows_ > 0) Multiply(compute_, l.attended.data(), queries, rows_, {&output, 1}, l.multiply_scratch);
  AddAdapters(layer, {{Part::kOutput}}, l.attended.data(), queries, {&output, 1});
  AddResidual(w.attention_post_norm, l.delta.data());
}

// x += W_down (act(W_gate n) * W_up n) with n = norm(x).
void ForwardPass::FeedForward(uint32_t layer) {
  if (rows_ == 0) return;
  Layout& l = *layout_;
  const LayerWeights& w = weights_.layer(layer);
  const uint64_t hidden = uint64_t{rows_} * model_.feed_forward;

  RmsNorm(compute_, l.x.data(), l.normed.data(), rows_, model_.width, model_.width, w.feed_forward_norm,
          model_.norm_epsilon);
  const std::array<Product, 2> gate_up = {ProductOf(w.gate, w.gate_bias, l.gate), ProductOf(w.up, w.up_bias, l.up)};
  Multiply(compute_, l.normed.data(), model_.width, rows_, gate_up, l.multiply_scratch);
  AddAdapters(layer, {{Part::kGate, Part::kUp}}, l.normed.data(), model_.width, gate_up);
  if (model_.gelu) {
    GeluTanhMultiply(compute_, l.gate.data(), l.up.data(), hidden);
  } else {
    SiluMultiply(compute_, l.gate.data(), l.up.data(), hidden);
  }
  const Product down = ProductOf(w.down, w.down_bias, l.delta);
  Multiply(compute_, l.gate.data(), model_.feed_forward, rows_, {&down, 1}, l.multiply_scratch);
  AddAdapters(layer, {{Part::kDown}}, l.gate.data(), model_.feed_forward, {&down, 1});
  AddResidual(w.feed_forward_post_norm, l.delta.data());
}

void ForwardPass::AddResidual(std::span<const float> post_norm, float* y) {
  if (rows_ == 0) return;
  if (!post_norm.empty()) RmsNorm(compute_, y, y, rows_, model_.width, model_.width, post_norm, model_.norm_epsilon);
  AddRows(compute_, layout_->x.data(), y, uint64_t{rows_} * model_.width);
}

// Moves the wanted rows of x and of the attention's result to the front: never backwards.
void ForwardPass::KeepWantedRows(const Batch& batch) {
  Layout& l = *layout_;
  const uint64_t queries = uint64_t{model_.query_heads} * model_.head_dim;
  uint64_t to = 0;
  for (const AttentionSlice& slice : l.wanted.first(slices_)) {
    std::memmove(l.x.data() + to * model_.width, l.x.data() + uint64_t{slice.first_row} * model_.width,
                 uint64_t{slice.rows} * model_.width * sizeof(float));
    std::memmove(l.attended.data() + to * queries, l.attended.data() + slice.first_row * queries,
                 slice.rows * queries * sizeof(float));
    to += slice.rows;
  }
  rows_ = rows_wanted_;
  PlanAdapters(batch, l.wanted.first(slices_));
}

// logits = W_head norm(x), for the wanted rows.
void ForwardPass::Head() {
  if (rows_ == 0) return;
  Layout& l = *layout_;
  RmsNorm(compute_, l.x.data(), l.normed.data(), rows_, model_.width, model_.width, weights_.final_norm(),
          model_.norm_epsilon);
  const Product head = ProductOf(weights_.head(), weights_.head_bias(), l.logits);
  Multiply(compute_, l.normed.data(), model_.width, rows_, {&head, 1}, l.multiply_scratch);
  AddAdapters(0, {{Part::kHead}}, l.normed.data(), model_.width, {&head, 1});
  if (model_.logit_soft_cap != 0.0f)
    SoftCap(compute_, l.logits.data(), model_.logit_soft_cap, uint64_t{rows_} * model_.vocab_size);
}

// `slices`: where each slice's rows are now. Equal neighbours become one run.
void ForwardPass::PlanAdapters(const Batch& batch, std::span<const AttentionSlice> slices) {
  runs_ = 0;
  if (weights_.adapter_infos().empty()) return;
  uint32_t row = 0;
  for (uint32_t s = 0; s < slices_; ++s) {
    const std::span<const AdapterUse> uses = batch.slices[s].adapters;
    AdapterRun* last = runs_ > 0 ? &layout_->runs[runs_ - 1] : nullptr;
    if (last != nullptr && std::equal(uses.begin(), uses.end(), last->uses.begin(), last->uses.end())) {
      last->rows += slices[s].rows;
    } else {
      layout_->runs[runs_++] = {row, slices[s].rows, uses};
    }
    row += slices[s].rows;
  }
}

void ForwardPass::AddAdapters(uint32_t layer, std::span<const Part> parts, const float* x, uint32_t x_stride,
                              std::span<const Product> products) {
  for (const AdapterRun& run : layout_->runs.first(runs_))
    for (const AdapterUse& use : run.uses)
      if (run.rows > 0 && use.scale != 0)
        AddAdapter(weights_.adapter(use.adapter), use.scale, layer, parts, x, x_stride, products, run);
}

// y = fma(scale * strength, B (A x), y), some rows at a time.
void ForwardPass::AddAdapter(const AdapterWeights& adapter, float scale, uint32_t layer, std::span<const Part> parts,
                             const float* x, uint32_t x_stride, std::span<const Product> products,
                             const AdapterRun& run) {
  std::array<const AdapterPair*, kSharedInput> pairs;
  std::array<Product, kSharedInput> inner;
  uint32_t found = 0;
  std::array<const Product*, kSharedInput> beside;
  uint32_t rows_max = kAdapterRows;
  std::span<float> free = layout_->adapter_inner;
  for (size_t i = 0; i < parts.size(); ++i) {
    const AdapterPair* pair = adapter.Find(parts[i], layer);
    if (pair == nullptr) continue;
    rows_max = std::min(rows_max, static_cast<uint32_t>(layout_->adapter_outer.size() / pair->b.rows));
    pairs[found] = pair;
    beside[found] = &products[i];
    inner[found] = {&pair->a, nullptr, free.data(), pair->a.rows};
    free = free.subspan(uint64_t{kAdapterRows} * pair->a.rows);
    ++found;
  }
  if (found == 0) return;
  for (uint32_t done = 0; done < run.rows; done += rows_max) {
    const uint32_t first = run.first_row + done;
    const uint32_t rows = std::min(rows_max, run.rows - done);
    Multiply(compute_, x + uint64_t{first} * x_stride, x_stride, rows, std::span(inner).first(found),
             layout_->multiply_scratch);
    for (uint32_t i = 0; i < found; ++i) {
      const PackedWeight& b = pairs[i]->b;
      const Product outer{&b, nullptr, layout_->adapter_outer.data(), b.rows};
      Multiply(compute_, inner[i].out, b.cols, rows, {&outer, 1}, layout_->multiply_scratch);
      CHECK_EQ(beside[i]->out_stride, b.rows);
      AddScaledRows(compute_, beside[i]->out + uint64_t{first} * b.rows, scale * pairs[i]->strength, outer.out,
                    uint64_t{rows} * b.rows);
    }
  }
}

// Before they are clamped to their storage type. A row of x that is not finite makes K and V of the
// next layer NaN, so this sees rows that are dropped in the last layer, too.
void ForwardPass::JudgeKv() {
  Layout& l = *layout_;
  const uint64_t keys = uint64_t{model_.kv_heads} * model_.head_dim;
  for (uint32_t s = 0; s < slices_; ++s) {
    const AttentionSlice& slice = l.all[s];
    const uint64_t first = slice.first_row * keys;
    const uint64_t count = slice.rows * keys;
    if (!AllFinite(l.k.subspan(first, count)) || !AllFinite(l.v.subspan(first, count))) l.finite[s] = 0;
  }
}

void ForwardPass::JudgeResidual() {
  Layout& l = *layout_;
  uint64_t row = 0;
  for (uint32_t s = 0; s < slices_; ++s) {
    const uint64_t rows = l.wanted[s].rows;
    if (!AllFinite(l.x.subspan(row * model_.width, rows * model_.width))) l.finite[s] = 0;
    row += rows;
  }
}

}  // namespace reprise
