// `sluice`: finds the sub-command and runs it. Each sub-command is in a file of its own.

#include <csignal>
#include <cstdio>
#include <string>
#include <string_view>

#include "cli/command_line.h"
#include "cli/interrupt.h"
#include "common/base/version.h"

namespace sluice::cli {
namespace {

struct Command {
  std::string_view name;
  CommandFunction function;
  const char* summary;  // null: not shown in the help
};

constexpr Command kCommands[] = {
    {"run", RunRun, "streams an answer to a prompt"},
    {"serve", RunServe, "serves HTTP clients: OpenAI's API and what is like it"},
    {"chat", RunChat, "holds a conversation"},
    {"pack", RunPack, "converts a model folder into a pack"},
    {"pull", RunPull, "fetches a model from a hub"},
    {"plan", RunPlan, "says what fits on this machine, how fast, and with which bits"},
    {"packs", RunPacks, "lists or removes the packs that --model has made"},
    {"inspect", RunInspect, "shows what is in a pack"},
    {"verify", RunVerify, "checks every checksum of a pack"},
    {"synth", RunSynth, "writes a pack of any size with random weights, for benchmarks"},
    {"tokenize", RunTokenize, "turns text into token ids"},
    {"detokenize", RunDetokenize, "turns token ids into text"},
    {"logits", RunLogits, "writes the logits of given token ids to a safetensors file"},
    {"perplexity", RunPerplexity, "measures perplexity on a text, and divergence from a base run"},
    {"calibrate", RunCalibrate, "measures usage, thresholds and sensitivities, trains predictors"},
    {"bench", RunBench, "measures prefill and decode speed"},
    {"doctor", RunDoctor, "says what is wrong with this host, and what helps"},
    {"top", RunTop, "shows what the daemons are doing, live"},
    {"tune", RunTune, "gives experts and the KV cache other shares of the memory, while serving"},
    {"preset", RunPreset, "lists the named sets of policies, or shows one"},
    {"supervise", RunSupervise, nullptr},
};

void PrintHelp() {
  std::printf(
      "Mixture-of-Experts models larger than memory; begin with: sluice run --model DIR_OR_GGUF --prompt "
      "TEXT\n\n");
  for (const Command& command : kCommands) {
    if (command.summary != nullptr) {
      std::printf("  %-12s%s\n", std::string(command.name).c_str(), command.summary);
    }
  }
  std::printf("`sluice COMMAND --help` shows options; exit codes: 0 done, 1 failed, 2 wrong usage.\n");
}

int Main(int argc, char** argv) {
  if (argc < 2) {
    PrintHelp();
    return kExitUsage;
  }
  const std::string_view name = argv[1];
  if (name == "--help" || name == "-h" || name == "help") {
    PrintHelp();
    return kExitOk;
  }
  if (name == "--version") {
    std::printf("sluice %s\n", Version());
    return kExitOk;
  }
  for (const Command& command : kCommands) {
    if (command.name == name) {
      // A closed pipe must be an error of write(): a signal would end the process and leave the daemons
      // behind.
      std::signal(SIGPIPE, SIG_IGN);
      Interrupt interrupt;
      return command.function({&interrupt, BinaryDir()}, {argv + 2, argv + argc});
    }
  }
  std::fprintf(stderr, "sluice: '%s' is no command of this build. Try 'sluice --help'.\n", argv[1]);
  return kExitUsage;
}

}  // namespace
}  // namespace sluice::cli

int main(int argc, char** argv) { return sluice::cli::Main(argc, argv); }
