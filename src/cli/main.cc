#include <cstdio>

#include "cli/commands.h"
#include "cli/usage.h"

int main(int argc, char** argv) {
  CLI::App app("reprise: an LLM inference server that never computes the same prefix twice", "reprise");
  app.require_subcommand(1);
  app.set_version_flag("--version", std::string("reprise ") + REPRISE_VERSION);
  app.footer("`reprise COMMAND --help` lists the flags of one. Start with: reprise serve MODEL.gguf");
  int status = 0;
  reprise::AddServeCommand(app, status);
  reprise::AddChatCommand(app, status);
  reprise::AddInspectCommand(app, status);
  reprise::AddBenchCommand(app, status);
  reprise::AddCacheCommand(app, status);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& done) {  // --help, --version
    return app.exit(done);
  } catch (const CLI::ParseError& error) {
    const std::string text = reprise::ExplainUsage(app, error, std::vector<std::string>(argv + 1, argv + argc));
    std::fprintf(stderr, "reprise: %s\n", text.c_str());
    return 2;
  }
  if ((std::fflush(stdout) != 0 || std::ferror(stdout) != 0) && status == 0) {
    std::fprintf(stderr, "reprise: the output could not be written\n");
    status = 1;
  }
  return status;
}
