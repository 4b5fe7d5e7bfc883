// SIGTERM and SIGINT: the first asks a run to stop, a second ends it at once.
#pragma once

namespace resnet50 {

/// From here on the two are asked about, and no longer end the program.
void catch_stop_signals();

/// The name of the signal that has come; null if none has.
const char* stop_signal();

}  // namespace resnet50
