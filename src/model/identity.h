// The parts of a computation's identity that a model file decides (tags 1 to 5 and 7 of a
// namespace). Canonical: equal computations give equal bytes, whatever the order of the file.
//
// Ownership: values. Threads: pure functions. Errors: none.
// Design:    docs/format/identity_model.md gives every byte
#pragma once

#include <span>
#include <string>

#include "base/hash.h"
#include "model/description.h"
#include "model/executor.h"
#include "model/gguf.h"

namespace reprise {

// Raised when a kernel or the forward pass changes the value of any output.
inline constexpr uint32_t kNumericsVersion = 1;

// A key whose value cannot change a reply's computation: names, licences, links, defaults for sampling.
bool IsHarmlessKey(std::string_view key);

// All metadata but harmless keys and those that belong to the tokenizer, to RoPE or to windows.
Digest MetadataDigest(const Gguf& gguf, std::string_view family_name);
// All `tokenizer.` metadata but chat templates.
Digest TokenizerDigest(const Gguf& gguf);

// "rope_neox/dims=64/base=1e+06/scale=1", one per RoPE, and which layer uses which.
std::string PositionText(const ModelDescription& model);
// "causal/scale=0.125/windows=0,0,512"
std::string AttentionText(const ModelDescription& model);
// "1", and the types that run through ggml, with its version.
std::string NumericsText(const ModelDescription& model);

// Of an adapter's tensors and alpha. `tensor_digests`: [adapter.tensors.size()].
Digest AdapterDigest(const AdapterDescription& adapter, std::span<const Digest> tensor_digests);
// Tag 3 of a sequence: which adapters take part, in which order and how strongly. One with scale 0 does not;
// empty without any. REQUIRES: every use is of an adapter in `adapters`.
std::string AdaptersIdentity(std::span<const AdapterInfo> adapters, std::span<const AdapterUse> uses);

// A tensor is hashed in chunks of whole rows, so that many threads can do it: about 1 MiB, a multiple
// of 16 rows. Its digest is the digest of its chunks' digests, in order.
uint32_t ChunkRows(const TensorSource& tensor);
// `tensor_digests`: [model.tensors.size()].
Digest ModelDigest(const ModelDescription& model, std::span<const Digest> tensor_digests);

}  // namespace reprise
