#include "infer.h"

#include "data.h"
#include "model.h"
#include "output.h"
#include "quern/autograd/grad_mode.h"
#include "quern/nn/loss.h"
#include "quern/nn/safetensors.h"
#include "quern/ops/autocast.h"
#include "quern/tensor/raw.h"
#include "report.h"

namespace resnet50 {

using namespace quern;

void infer(const Options& options) {
  FakeLoader loader(options);
  const auto network = make_model(options);
  nn::Module& model = *network;
  model.eval();
  const nn::CrossEntropyLoss criterion;
  Report report(options, loader.shape(), count_parameters(model));
  const NoGradGuard no_grad;
  const AutocastGuard autocast(options.amp);
  Batch batch;
  Tensor logits;

  for (int64_t step = 0; step < options.total_steps(); ++step) {
    report.begin_step();
    batch = loader.next();
    report.data_ready();

    logits = model(batch.input);
    report.end_step(criterion(logits, batch.target).item());
  }
  report.finish();

  if (!options.dump_input.empty()) save_batch(options.dump_input, batch);
  if (!options.dump_output.empty())
    save_safetensors(options.dump_output, {{"logits", raw::to(logits, DType::f32)}});
  if (!options.json.empty()) write_text(options.json, report.json());
}

}  // namespace resnet50
