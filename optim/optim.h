// All of optim: `#include <quern/optim/optim.h>`.
#pragma once
#include "quern/optim/adam.h"
#include "quern/optim/adamw.h"
#include "quern/optim/clip_grad.h"
#include "quern/optim/ema.h"
#include "quern/optim/optimizer.h"
#include "quern/optim/rmsprop.h"
#include "quern/optim/schedule.h"
#include "quern/optim/sgd.h"
