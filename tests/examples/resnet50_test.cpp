// resnet50 from the outside, on networks and images that take a moment.
#include <doctest/doctest.h>
#include <fmt/core.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <sstream>

#include "examples/program.h"
#include "quern/autograd/grad_mode.h"
#include "quern/nn/resnet.h"
#include "quern/nn/safetensors.h"
#include "quern/ops/kernels/conv/conv_kernel.h"
#include "quern/ops/kernels/elementwise/elementwise_kernel.h"
#include "quern/ops/kernels/gemm/direct_kernel.h"
#include "quern/ops/kernels/gemm/gemm_kernel.h"
#include "quern/ops/kernels/norm/batch_norm_kernel.h"
#include "quern/ops/kernels/norm/join_kernel.h"
#include "quern/ops/kernels/optim/update_kernel.h"
#include "quern/ops/kernels/pool/pool_kernel.h"
#include "quern/ops/kernels/reduce/row_kernel.h"
#include "quern/ops/kernels/table.h"
#include "quern/tensor/random.h"
#include "quern/tensor/raw.h"

using namespace quern;
using namespace quern::testing;

namespace {

const std::string kTiny = " --arch resnet18 --image-size 32 -b 4 ";

/// Runs it, expects success, and gives its standard output.
std::string resnet50(const std::string& args, const std::string& environment = "") {
  const Run result = run(environment + " " QUERN_RESNET50 " " + args);
  CAPTURE(args);
  CAPTURE(result.err);
  REQUIRE(result.status == 0);
  return result.out;
}

nlohmann::json load_json(const std::string& path) { return nlohmann::json::parse(read_file(path)); }

bool same_bits(const TensorDict& a, const TensorDict& b) {
  if (a.size() != b.size()) return false;
  for (const auto& [name, tensor] : a) {
    const Tensor* other = b.find(name);
    if (!other || other->dtype() != tensor.dtype() || other->shape() != tensor.shape() ||
        std::memcmp(other->data_ptr(), tensor.data_ptr(), static_cast<size_t>(tensor.nbytes())) !=
            0)
      return false;
  }
  return true;
}

}  // namespace

TEST_CASE("training lowers the loss, with either optimizer, format and precision") {
  const TemporaryFolder folder;
  const std::string json = folder / "json";
  for (const std::string options :
       {"--lr 0.02", "--lr 0.001 --opt adamw --channels-last", "--lr 0.02 --amp --channels-last",
        "--lr 0.02 --matmul-precision medium --channels-last"}) {
    CAPTURE(options);
    resnet50("train" + kTiny + "--steps 4 " + options + " --json " + json);
    const std::vector<double> loss = load_json(json).at("loss");
    CHECK(loss.size() == 4);
    CHECK(loss.back() < 0.5 * loss.front());
  }
}

TEST_CASE("the JSON tells settings and measurements") {
  const TemporaryFolder folder;
  const std::string path = folder / "json";
  for (const std::string mode : {"train", "infer"}) {
    const std::string out =
        resnet50(mode + kTiny +
                     "--steps 5 --threads 2 --channels-last --matmul-precision high --json " + path,
                 "QUERN_MAX_CPU_ISA=portable");
    CHECK(out.find(" f32 in high precision, ") != std::string::npos);
    const nlohmann::json json = load_json(path);
    CHECK(json.at("mode") == mode);
    CHECK(json.at("arch") == "resnet18");
    CHECK(json.at("batch_size") == 4);
    CHECK(json.at("image_size") == 32);
    CHECK(json.at("amp") == false);
    CHECK(json.at("matmul_precision") == "high");
    CHECK(json.at("channels_last") == true);
    CHECK(json.at("threads") == 2);
    CHECK(json.at("isa") == "portable");
    CHECK(json.at("steps") == 5);
    CHECK(json.at("loss").size() == 5);
    CHECK(json.at("peak_rss_mib") > 1);

    const std::vector<double> ms = json.at("step_ms");
    CHECK(ms.size() == 5);
    std::vector<double> warm(ms.begin() + 2, ms.end());
    std::sort(warm.begin(), warm.end());
    const double rate = json.at("samples_per_second");
    CHECK(rate == doctest::Approx(4 * 1000 / warm[1]).epsilon(1e-12));
    CHECK(json.contains("latency_ms") == (mode == "infer"));
    if (mode == "infer") {
      CHECK(json.at("latency_ms").at("p50") == warm[1]);
      CHECK(json.at("latency_ms").at("p90") == warm[2]);
      CHECK(json.at("latency_ms").at("p99") == warm[2]);
    }
  }
}

TEST_CASE("a pipe gets plain lines") {
  const std::string out = resnet50("train" + kTiny + "--steps 2 --epochs 2 -p 3");
  CHECK(out.find('\r') == std::string::npos);
  CHECK(out.find('\x1b') == std::string::npos);
  const std::regex line(R"(Epoch: \[(\d)\]\[(\d)/2\] Time [\d.]+ \([\d.]+\) )"
                        R"(Data [\d.]+ \([\d.]+\) Loss [\d.]+ \([\d.]+\))");
  std::string steps;
  for (std::sregex_iterator match(out.begin(), out.end(), line), end; match != end; ++match)
    steps += (*match)[1].str() + (*match)[2].str() + " ";
  CHECK(steps == "01 11 12 ");
}

TEST_CASE("a terminal gets a progress bar") {
  int terminal = -1;
  const pid_t child = forkpty(&terminal, nullptr, nullptr, nullptr);
  REQUIRE(child >= 0);
  if (child == 0) {
    execl(QUERN_RESNET50, "resnet50", "infer", "--arch", "resnet18", "--image-size", "32", "-b",
          "2", "--steps", "3", nullptr);
    _exit(127);
  }
  std::string out;
  char buffer[4096];
  for (ssize_t n; (n = read(terminal, buffer, sizeof buffer)) > 0;)
    out.append(buffer, static_cast<size_t>(n));
  int status = -1;
  waitpid(child, &status, 0);
  close(terminal);
  CHECK(status == 0);
  for (const char* part : {"\r1/3 [========                ] loss ", "samples/s", "0:00 left",
                           "\r3/3 [========================] loss "})
    CHECK(out.find(part) != std::string::npos);
  CHECK(out.find("Epoch") == std::string::npos);
}

TEST_CASE("any number of threads trains to the same bits") {
  const TemporaryFolder folder;
  for (const std::string options : {"", "--amp --channels-last"}) {
    std::vector<TensorDict> saved, grads;
    std::vector<std::vector<double>> losses;
    for (const std::string threads : {"1", "2", "3"}) {
      resnet50("train" + kTiny + "--steps 2 --dummy-size 5 " + options + " --threads " + threads +
               " --save " + folder / "save" + " --dump-grads " + folder / "grads" + " --json " +
               folder / "json");
      saved.push_back(load_safetensors(folder / "save"));
      grads.push_back(load_safetensors(folder / "grads"));
      losses.push_back(load_json(folder / "json").at("loss"));
    }
    for (size_t i : {1, 2}) {
      CHECK(losses[i] == losses[0]);
      CHECK(same_bits(saved[i], saved[0]));
      CHECK(same_bits(grads[i], grads[0]));
    }
  }
}

TEST_CASE("fake images are the same by any number of workers") {
  const TemporaryFolder folder;
  std::vector<std::vector<double>> losses;
  for (const std::string workers : {"", "-j 0", "-j 1", "-j 3", "-j 9"}) {
    resnet50("train" + kTiny + "--steps 5 --dummy-size 1000000 " + workers + " --json " +
             folder / "json");
    losses.push_back(load_json(folder / "json").at("loss"));
    CHECK(losses.back() == losses.front());
  }
  resnet50("train" + kTiny + "--steps 5 --dummy-size 4 --json " + folder / "json");
  CHECK(losses.front() != load_json(folder / "json").at("loss").get<std::vector<double>>());
}

// A silent reference kernel costs a hundredfold, as users of other engines have found.
TEST_CASE("no op of ResNet-50 falls back on a reference kernel") {
  std::set<std::string> all;
  const auto add = [&](const auto& table) {
    for (const auto* kernel : table) all.insert(kernel->name);
  };
  using namespace kernels;
  add(table<ConvKernel>()), add(table<GemmKernel>()), add(table<DirectKernel>());
  add(table<BatchNormKernel>()), add(table<JoinKernel>()), add(table<PoolKernel>());
  add(table<UnaryKernel>()), add(table<BinaryKernel>()), add(table<RowKernel>());
  add(table<SgdKernel>());
  std::erase_if(all, [](const std::string& name) { return name.ends_with("reference"); });
  // Op and kernel; of a convolution also the micro-kernel.
  const std::regex format("quern_verbose,([^,]+),([^,:]+)(:([^,]+))?,.*");
  for (const std::string options : {"", "--channels-last", "--amp", "--amp --channels-last"})
    for (const bool fuse : {true, false}) {
      CAPTURE(options);
      CAPTURE(fuse);
      const std::string out =
          resnet50("train --image-size 32 -b 2 --steps 1 " + options + (fuse ? "" : " --no-fuse"),
                   "QUERN_VERBOSE=1");
      CHECK(out.find("quern_verbose,conv2d_wgrad,brgemm:") != out.npos);
      CHECK((out.find("quern_verbose,conv_chain_join_fwd,") != out.npos) == fuse);
      CHECK((out.find("quern_verbose,batch_norm_fwd,") != out.npos) == !fuse);
      CHECK(out.find("reference") == out.npos);
      std::map<std::string, int> calls;  // of each op
      std::istringstream lines(out);
      for (std::string line; std::getline(lines, line);) {
        if (!line.starts_with("quern_verbose,")) continue;
        CAPTURE(line);
        std::smatch match;
        REQUIRE(std::regex_match(line, match, format));
        ++calls[match[1]];
        CHECK(all.contains(match[2]));
        if (match[4].matched) CHECK(all.contains(match[4]));
      }
      CHECK(calls["conv2d_fwd"] == 53);  // all convolutions of ResNet-50
      CHECK(calls["conv2d_wgrad"] == 53);
    }
}

TEST_CASE("a seed names a run") {
  const TemporaryFolder folder;
  const auto first_loss = [&](const std::string& options) {
    resnet50("infer" + kTiny + "--steps 1 --json " + folder / "json" + " " + options);
    return load_json(folder / "json").at("loss").at(0).get<double>();
  };
  CHECK(first_loss("--seed 7") == first_loss("--seed 7"));
  CHECK(first_loss("--seed 7") != first_loss("--seed 8"));
}

TEST_CASE("fake images are cycled") {
  const TemporaryFolder folder;
  resnet50("infer" + kTiny + "--dummy-size 6 --steps 6 --json " + folder / "json");
  const std::vector<double> loss = load_json(folder / "json").at("loss");
  // Without learning the loss depends on the images alone: 0-3, 4-1, 2-5, and so on.
  for (size_t i : {0, 1, 2}) CHECK(loss[i] == loss[i + 3]);
  CHECK(loss[0] != loss[1]);
  CHECK(loss[1] != loss[2]);
}

TEST_CASE("weights, a batch, and dumps go through files") {
  const TemporaryFolder folder;
  const std::string weights = folder / "weights", batch = folder / "batch";
  nn::ResNet model = nn::resnet18();
  save_safetensors(weights, model.state_dict());
  save_safetensors(
      batch, {{"input", randn({3, 3, 37, 45})}, {"target", from_vector<int64_t>({999, 0, 5})}});
  const std::string common = " --arch resnet18 --weights " + weights + " --batch " + batch;

  resnet50("train" + common + " --steps 2 --lr 0.5 --dump-grads " + folder / "grads" + " --save " +
           folder / "save" + " --dump-output " + folder / "logits" + " --json " + folder / "json");
  CHECK(load_json(folder / "json").at("batch_size") == 3);
  CHECK(load_json(folder / "json").at("image_size") == nlohmann::json({37, 45}));
  CHECK(load_safetensors(folder / "logits").at("logits").describe() == "f32 [3,1000]");
  const TensorDict grads = load_safetensors(folder / "grads"),
                   saved = load_safetensors(folder / "save");
  CHECK(grads.size() == model.named_parameters().size());
  for (const auto& [name, parameter] : model.named_parameters()) {
    REQUIRE(grads.contains(name));
    CHECK(grads.at(name).describe() == "f32 " + to_string(parameter.shape()));
  }
  CHECK(saved.size() == model.state_dict().size());
  CHECK_FALSE(same_bits(saved, load_safetensors(weights)));

  // Inference reads what training saved, and is the library's.
  resnet50("infer --arch resnet18 --weights " + folder / "save" + " --batch " + batch +
           " --steps 1 --dump-output " + folder / "logits");
  const TensorDict logits = load_safetensors(folder / "logits");
  model.load_state_dict(saved);
  model.eval();
  const NoGradGuard no_grad;
  CHECK(same_bits(logits, {{"logits", model(load_safetensors(batch).at("input"))}}));
}

TEST_CASE("the last step's gradients are those of the step before the update") {
  const TemporaryFolder folder;
  const std::string before = folder / "before", after = folder / "after", grads = folder / "grads";
  resnet50("train" + kTiny + "--steps 1 --lr 0 --save " + before);
  resnet50("train" + kTiny + "--steps 1 --lr 0.25 --wd 0 --save " + after + " --dump-grads " +
           grads);
  const TensorDict w = load_safetensors(before), updated = load_safetensors(after);
  for (const auto& [name, grad] : load_safetensors(grads)) {
    const auto p = w.at(name).to_vector<double>(), q = updated.at(name).to_vector<double>(),
               g = grad.to_vector<double>();
    // p - lr·g with one or two roundings to f32; lr is a power of two; denormals go to zero.
    for (size_t i = 0; i < p.size(); ++i)
      REQUIRE(std::abs(p[i] - 0.25 * g[i] - q[i]) <=
              0x1p-24 * (std::abs(q[i]) + std::abs(0.25 * g[i])) + 0x1p-126);
  }
}

TEST_CASE("asking for bf16 where it is slow is said in one line") {
  const Run slow = run("QUERN_MAX_CPU_ISA=avx2 " QUERN_RESNET50 " infer --amp --steps 1" + kTiny);
  CHECK(slow.status == 0);
  CHECK(slow.err ==
        "resnet50: warning: --amp: avx2 has no fast bf16 arithmetic: slower than f32\n");
  const Run plain = run("QUERN_MAX_CPU_ISA=avx2 " QUERN_RESNET50 " infer --steps 1" + kTiny);
  CHECK(plain.err.empty());
}

TEST_CASE("the first program learns") {
  const Run result = run(QUERN_FIRST);
  CHECK(result.status == 0);
  const std::regex line(R"(step +\d+  loss ([\d.]+)\n)");
  std::vector<double> losses;
  for (std::sregex_iterator match(result.out.begin(), result.out.end(), line), end; match != end;
       ++match)
    losses.push_back(std::stod((*match)[1].str()));
  CHECK(losses.size() == 20);
  CHECK(losses.back() < 0.1 * losses.front());
}
