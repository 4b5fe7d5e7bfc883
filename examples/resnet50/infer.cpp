#include "infer.h"

#include "data.h"
#include "model.h"
#include "profile.h"
#include "quern/autograd/grad_mode.h"
#include "quern/nn/loss.h"
#include "quern/nn/safetensors.h"
#include "quern/ops/autocast.h"
#include "quern/tensor/raw.h"
#include "quern/tensor/span.h"
#include "report.h"
#include "write_text.h"

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
  Profile profile(options, options.total_steps());

  for (int64_t step = 0; step < options.total_steps(); ++step) {
    report.begin_step();
    {
      const Span span("data");
      batch = loader.next();
    }
    report.data_ready();

    logits = model(batch.input);
    report.end_step(criterion(logits, batch.target).item());
    profile.end_step();
  }
  report.finish();
  profile.finish();

  if (!options.dump_input.empty()) save_batch(options.dump_input, batch);
  if (!options.dump_output.empty())
    save_safetensors(options.dump_output, {{"logits", raw::to(logits, DType::f32)}});
  if (!options.json.empty()) write_text(options.json, report.json());
}

}  // namespace resnet50
