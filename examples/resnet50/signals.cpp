#include "signals.h"

#include <csignal>
#include <initializer_list>

namespace resnet50 {
namespace {

volatile std::sig_atomic_t stopped_by = 0;

extern "C" void remember_signal(int number) {
  stopped_by = number;
  for (const int signal : {SIGTERM, SIGINT}) std::signal(signal, SIG_DFL);
}

}  // namespace

void catch_stop_signals() {
  for (const int signal : {SIGTERM, SIGINT}) std::signal(signal, remember_signal);
}

const char* stop_signal() {
  if (stopped_by == 0) return nullptr;
  return stopped_by == SIGTERM ? "SIGTERM" : "SIGINT";
}

}  // namespace resnet50
