#include "cli/commands.h"

int main(int argc, char** argv) {
  CLI::App app("reprise: an LLM inference server that never computes the same prefix twice", "reprise");
  app.require_subcommand(1);
  int status = 0;
  reprise::AddServeCommand(app, status);
  reprise::AddInspectCommand(app, status);
  reprise::AddBenchCommand(app, status);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  return status;
}
