// The engine inside a program: one model file, one question, words as they come.
//
//   embed MODEL.gguf "Why is the sky blue?"
#include <cstdio>
#include <future>
#include <string>

#include "engine/local_engine.h"

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: embed MODEL.gguf QUESTION\n");
    return 2;
  }
  reprise::LocalEngineOptions options;
  options.model_path = argv[1];
  options.memory_bytes = 1ull << 30;
  options.context = 2048;
  auto local = reprise::LocalEngine::Load(options, [](double) {});
  if (!local.ok()) {
    std::fprintf(stderr, "embed: %s\n", std::string(local.status().message()).c_str());
    return 1;
  }
  if ((*local)->chat_template() == nullptr) {
    std::fprintf(stderr, "embed: a base model has no chat template\n");
    return 1;
  }
  auto prompt = (*local)->chat_template()->Prompt({.messages = {{.role = "user", .content = argv[2]}}});
  if (!prompt.ok()) {
    std::fprintf(stderr, "embed: %s\n", std::string(prompt.status().message()).c_str());
    return 1;
  }
  reprise::GenerationRequest request;
  request.prompt = (*local)->tokenizer().Encode(prompt->text, /*add_special=*/true, /*parse_special=*/true);
  request.max_tokens = 64;
  request.sampling.temperature = 0;

  // Events come on the engine's thread, in order; the last one has `finish`.
  std::promise<reprise::GenerationEvent> last;
  const auto submission = (*local)->engine().Submit(std::move(request), [&last](reprise::GenerationEvent event) {
    std::fputs(event.text.c_str(), stdout);
    std::fflush(stdout);
    if (event.finish) last.set_value(std::move(event));
  });
  if (submission.error) {
    std::fprintf(stderr, "embed: %s\n", submission.error->message.c_str());
    return 1;
  }
  const reprise::Timings timings = last.get_future().get().timings;
  std::printf("\n[%u tokens, %u of %u prompt tokens reused]\n", timings.predicted_n,
              timings.prompt_n - timings.computed_n, timings.prompt_n);
  return 0;
}
