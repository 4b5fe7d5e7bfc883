// Forward and dgrad of conv_depthwise.
//
//   for each cell (rows of an image, panel of channels), in parallel, for each block of its rows
//     copy the rows of the source that it reads, unless they are read where they lie
//     for each row of outputs, for each phase of it along x (axis.h)
//       sums, in registers from the first tap to the last    depthwise_simd.h
//       the epilogue, the store                              conv/epilogue
//
// The kernels do the latter, too, if channels are innermost and no residual or gradient follows;
// of 3×3 and 5×5 all rows of a block at once (slide_simd.h), where no moments follow.
#include <algorithm>

#include "quern/ops/kernels/blocking.h"
#include "quern/ops/kernels/conv/depthwise/depthwise.h"
#include "quern/ops/kernels/conv/epilogue/epilogue.h"
#include "quern/tensor/per_thread.h"

namespace quern::kernels {
namespace {

template <class T>
class DepthwiseEngine {
  static constexpr int64_t kTileRows = PanelSums<float>::kRows, kItem = sizeof(T);
  using Source = DepthwiseSource<T>;

 public:
  DepthwiseEngine(const DepthwisePlan& plan, const void* source, const void* packed,
                  const ChannelMap& map, const Epilogue& epilogue, void* output)
      : plan_(plan),
        p_(plan.problem),
        forward_(plan.pass != ConvPass::dgrad),
        y_(plan.y),
        x_(plan.x),
        kernel_(plan.kernel),
        gemm_(*plan.gemm),
        outputs_(plan.channels),
        sources_(forward_ ? p_.ic : p_.oc),
        index_(plan.index_of(map)),
        source_(source, p_.format, p_.n, sources_, y_.source, x_.source,
                forward_ ? p_.x_gap : p_.y_gap, map, &plan.kernel, index_ ? Spread{} : plan.spread),
        weight_(static_cast<const float*>(packed)),
        out_(static_cast<T*>(output)),
        out_strides_(p_.format, outputs_, y_.output, x_.output, forward_ ? p_.y_gap : p_.x_gap),
        epilogue_(epilogue),
        plain_(is_plain(epilogue) && (outputs_ >= kDepthwiseChannels || !epilogue.map.shift)),
        direct_(plain_ && out_strides_.c == 1 && outputs_ >= kDepthwiseChannels),
        moments_(epilogue.kind == Epilogue::Kind::moments && out_strides_.c == 1 &&
                 outputs_ >= kDepthwiseChannels && plan.group == 1 && !index_),
        slides_(direct_ && plan.slides && !pixels_collide() && !reads_pairs_of_lines() &&
                (x_.stride() == 1 || !source_.streams_past(cache::l2())) &&
                output_bytes() < cache::read_at_once()),
        bypasses_(!slides_ &&
                  bypasses(forward_ ? cache::read_by_products() : cache::read_at_once())),
        panels_(outputs_, panel_width()),
        pitch_(round_up(panels_.widest(), kDepthwiseChannels)),
        streams_(source_.streams_past(cache::just_written())),
        owned_ahead_(output_bytes() >= cache::owned_ahead() ? out_strides_.y : 0),
        row_parts_(row_parts()),
        block_rows_(block_rows()),
        output_(epilogue, gemm_, out_strides_, out_strides_.x, p_.n, outputs_, p_.n * row_parts_,
                out_),
        copies_(source_.scratch_items(most_source_rows(), pitch_)),
        sums_(direct_ || moments_ ? 0 : (by_row() ? 1 : block_rows_) * x_.output * pitch_),
        tiles_(direct_ ? 0 : output_.scratch_items(kTileRows)) {}

  void run() const {
    parallel_for(p_.n * row_parts_ * panels_.count, [&](int64_t cell) {
      run_cell(cell / panels_.count, panels_[cell % panels_.count]);
    });
    if (!plain_)
      output_.merge([&](int64_t block) { return rows_of(block % row_parts_).size * x_.output; });
  }

 private:
  /// Do pixels lie so far apart that windows which slide do not find again what is in L1? Where
  /// pixels of bf16 are 512 bytes apart, they do not find the second half of a line, and loops over
  /// two vectors, of three taps, do: there a channel counts as f32. And eight pixels of 512 bytes
  /// are a way: of three taps, a row of sums reads nine and stores seven, which must not wait for
  /// what comes from beyond L2.
  bool pixels_collide() const {
    const bool few_taps = p_.kw == 3;
    return cache::collides(out_strides_.x * (few_taps ? int64_t{sizeof(float)} : kItem)) ||
           (few_taps && out_strides_.x * kItem == cache::kWay / 8 &&
            source_.streams_past(cache::l2()));
  }
  bool comes_over_mesh() const { return l3_is_mesh() && source_.streams_past(cache::l2()); }
  /// Row by row, f32 under three taps is read by two vectors at a time: whole pairs of lines, as
  /// Intel's L2 fetches them, if pixels are a multiple of these.
  bool reads_pairs_of_lines() const {
    return comes_over_mesh() && p_.kw == 3 && kItem == 4 &&
           out_strides_.x * kItem % (2 * cache::kLine) == 0;
  }
  int64_t output_bytes() const { return p_.n * out_strides_.n * kItem; }
  bool bypasses(int64_t least) const {
    return cache::bypassed(out_, output_bytes(), out_strides_.x * kItem, least);
  }
  /// Are rows completed one by one, out of L1? Those of planes are copied together.
  bool by_row() const { return !plain_ && out_strides_.c == 1; }
  int64_t panel_width() const {
    const int64_t weights = plan_.taps * plan_.group * plan_.spread.in;
    if ((source_.copied() && !source_.maps_pixels()) || out_strides_.c != 1)
      return depthwise_panel(weights, kCopiedChannels<T>);
    if (direct_ && plan_.group > 1)
      return depthwise_panel(weights, outputs_, cache::grouped_weights());
    if (slides_ && !comes_over_mesh())  // whole columns first: windows slide over them best
      return depthwise_panel(weights, std::max(kCopiedChannels<T>, outputs_ * p_.n / wanted()));
    return depthwise_panel(weights, moments_ ? std::min(outputs_, kStripColumns) : outputs_);
  }
  int64_t wanted() const {
    return wanted_cells(p_.n * p_.oc * p_.oh * p_.ow * plan_.taps * plan_.group * plan_.spread.in);
  }
  /// Cells that an image's rows are cut into, to keep threads busy.
  int64_t row_parts() const {
    return std::clamp<int64_t>(ceil_div(wanted(), p_.n * panels_.count), 1, y_.output);
  }
  Extent rows_of(int64_t part) const { return piece(y_.output, row_parts_, part); }
  /// Rows of a cell at a time: as many as keep what is copied where it is to be.
  int64_t block_rows() const {
    const int64_t row_bytes =
        source_.scratch_items(1, pitch_) * static_cast<int64_t>(sizeof(T)) +
        (slides_               ? (x_.source + x_.output) * panels_.widest() * kItem
         : direct_ || by_row() ? 0
                               : x_.output * pitch_ * static_cast<int64_t>(sizeof(float)));
    const int64_t of_cell = ceil_div(y_.output, row_parts_);
    return even_piece(
        of_cell, std::clamp<int64_t>(cache::depthwise_block() / std::max<int64_t>(1, row_bytes), 1,
                                     of_cell));
  }

  Extent source_rows(Extent rows) const {
    int64_t begin = y_.source, end = 0;
    for (int64_t i = rows.begin; i < rows.begin + rows.size; ++i) {
      const DepthwisePlan::Rows read = plan_.rows_read(i);
      if (read.taps.begin >= read.taps.end) continue;
      begin = std::min(begin, read.first(y_));
      end = std::max(end, read.last(y_) + 1);
    }
    return {begin, std::max<int64_t>(0, end - begin)};
  }
  /// Of a block, at most.
  int64_t most_source_rows() const {
    const int64_t reach = (y_.kernel - 1) * y_.dilation, last = block_rows_ - 1;
    const int64_t rows =
        forward_ ? last * y_.stride() + reach + 1 : (last + reach) / y_.output_step + 2;
    return source_.copied() ? std::min(y_.source, rows) : 0;
  }

  void run_cell(int64_t cell, Extent channels) const;
  template <class To>
  void sum_row(int64_t row, const Source::View& view, Extent channels, To* to, int64_t pixel) const;
  template <class To>
  void sum_rows(Extent rows, const Source::View& view, Extent channels, To* to) const {
    for (int64_t i = 0; i < rows.size; ++i)
      sum_row(rows.begin + i, view, channels, to + i * x_.output * pitch_, pitch_);
  }
  void store_rows(Extent rows, const Source::View& view, Extent channels, T* to) const;
  void store_row(int64_t row, const Source::View& view, Extent channels, T* to,
                 StripSums& sums) const;
  /// Where an image's row is in the output.
  int64_t place(int64_t image, int64_t row, int64_t channel) const {
    return image * out_strides_.n + row * out_strides_.y + channel * out_strides_.c;
  }
  void copy_out(const T* sums, int64_t image, Extent rows, Extent channels) const;
  using Totals = CachedVector<PanelSums<float>>;  // of the channels, kMaxNr or a tile's at a time
  int64_t totals_width() const { return out_strides_.c == 1 ? kMaxNr : gemm_.nr; }
  Totals totals_of(int64_t block, Extent channels) const;
  void complete(float* sums, int64_t pixels, int64_t place, Extent channels, Totals& totals) const;

  const DepthwisePlan& plan_;
  const ConvProblem& p_;
  const bool forward_;
  const Axis &y_, &x_;
  const DepthwiseKernel& kernel_;
  const GemmKernel& gemm_;  // whose tiles' widths the epilogue has
  const int64_t outputs_;   // channels of the output
  const int64_t sources_;   // channels of the source
  /// Of the output's channels (DepthwiseWindow), where the kernels spread groups.
  const int32_t* const index_;
  const Source source_;
  const float* const weight_;  // [tap][channel of the group][channel]
  T* const out_;
  const ImageStrides out_strides_;
  const Epilogue epilogue_;
  const bool plain_;    // the kernels do all of it
  const bool direct_;   // to channels that lie as the kernels write them
  const bool moments_;  // the kernels take them
  /// Do windows slide down the rows? They write columns, which does not go past the caches well:
  /// what has room in L3 had better go there, and more is made row by row.
  const bool slides_;
  const bool bypasses_;  // does the output bypass the caches?
  const ChannelPanels panels_;
  const int64_t pitch_;        // of a pixel in scratch
  const bool streams_;         // is the source prefetched?
  const int64_t owned_ahead_;  // to the next row of an output so large that owning its lines pays
  const int64_t row_parts_, block_rows_;
  const TileOutput<T> output_;
  const PerThread<T> copies_;    // of a block's source
  const PerThread<float> sums_;  // of a block
  const PerThread<T> tiles_;
};

template <class T>
void DepthwiseEngine<T>::run_cell(int64_t cell, Extent channels) const {
  const int64_t image = cell / row_parts_;
  const Extent all = rows_of(cell % row_parts_);
  Totals totals = plain_ || moments_ ? Totals{} : totals_of(cell, channels);
  StripSums moments =
      output_.template sums<StripSums>(cell, channels.begin, moments_ ? channels.size : 0);
  Extent held{};
  for (int64_t at = 0; at < all.size; at += block_rows_) {
    const Extent rows{all.begin + at, std::min(block_rows_, all.size - at)};
    const auto view = source_.view(image, source_.copied() ? source_rows(rows) : Extent{},
                                   index_ ? Extent{0, sources_} : channels, copies_.get(), held);
    if (slides_) {
      store_rows(rows, view, channels, out_ + place(image, rows.begin, channels.begin));
    } else if (direct_) {
      for (int64_t i = rows.begin; i < rows.begin + rows.size; ++i)
        sum_row(i, view, channels, out_ + place(image, i, channels.begin), out_strides_.x);
    } else if (moments_) {
      for (int64_t i = rows.begin; i < rows.begin + rows.size; ++i)
        store_row(i, view, channels, out_ + place(image, i, channels.begin), moments);
    } else if (plain_) {
      T* sums = reinterpret_cast<T*>(sums_.get());
      sum_rows(rows, view, channels, sums);
      copy_out(sums, image, rows, channels);
    } else {
      const int64_t at_once = by_row() ? 1 : rows.size;
      for (int64_t i = 0; i < rows.size; i += at_once) {
        sum_rows({rows.begin + i, at_once}, view, channels, sums_.get());
        complete(sums_.get(), at_once * x_.output, place(image, rows.begin + i, channels.begin),
                 channels, totals);
      }
    }
  }
  for (PanelSums<float>& t : totals) t.flush();
  moments.flush();
}

/// A row of outputs, `pixel` elements from one to the next.
template <class T>
template <class To>
void DepthwiseEngine<T>::sum_row(int64_t row, const Source::View& view, Extent channels, To* to,
                                 int64_t pixel) const {
  const DepthwisePlan::Rows read = plan_.rows_read(row);
  DepthwiseStore after = plain_ ? activation(epilogue_, channels.begin) : DepthwiseStore{};
  if (direct_) after.to_next_row = owned_ahead_, after.streams = bypasses_;
  for (const Phase& phase : plan_.x_phases) {
    const auto [window, first_tap] = plan_.window(read, phase, view, channels, streams_,
                                                  index_ ? index_ + channels.begin : nullptr);
    const float* weight = weight_ + first_tap;
    each_dense<T>(window, [&](const DepthwiseWindow& part, int64_t first, int64_t apart) {
      To* from = to + (phase.start + first * x_.output_step) * pixel;
      const int64_t step = apart * x_.output_step * pixel;
      if constexpr (std::is_same_v<To, T>) kernel_.store(part, weight, after, from, step);
      else kernel_.sum(part, weight, from, step);
    });
  }
}

/// Rows of outputs, where the window slides down.
template <class T>
void DepthwiseEngine<T>::store_rows(Extent rows, const Source::View& view, Extent channels,
                                    T* to) const {
  DepthwisePlan::Rows read = plan_.rows_read(rows.begin);
  read.taps = {0, read.phase.taps};
  const auto [window, first_tap] =
      plan_.window(read, plan_.x_phases[0], view, channels, source_.streams_past(cache::l2()));
  const int64_t first = read.first(y_);
  kernel_.store_rows(window,
                     {.count = rows.size,
                      .begin = std::max<int64_t>(-first, 0),
                      .end = y_.source - first,
                      .out_row = out_strides_.y},
                     weight_ + first_tap, activation(epilogue_, channels.begin), to,
                     out_strides_.x);
}

/// A row of outputs of forward, with their moments, to where it belongs.
template <class T>
void DepthwiseEngine<T>::store_row(int64_t row, const Source::View& view, Extent channels, T* to,
                                   StripSums& sums) const {
  const Phase& phase = plan_.x_phases[0];
  auto [window, first_tap] = plan_.window(plan_.rows_read(row), phase, view, channels, streams_);
  for (int64_t i = 0; i < phase.count; i += StripSums::kRows) {
    window.outputs = std::min(StripSums::kRows, phase.count - i);
    window.offset = phase.offset + i * window.stride;
    const auto store = [&] {
      each_dense<T>(window, [&](const DepthwiseWindow& part, int64_t first, int64_t apart) {
        kernel_.store(part, weight_ + first_tap,
                      {.pivot = sums.pivot,
                       .first = sums.a,
                       .second = sums.b,
                       .to_next_row = owned_ahead_,
                       .streams = bypasses_},
                      to + (i + first) * out_strides_.x, apart * out_strides_.x);
      });
    };
    if (sums.needs_pivot()) store(), sums.pivot_from_sums(window.outputs);
    sums.prepare(window.outputs);
    store();
  }
}

template <class T>
void DepthwiseEngine<T>::copy_out(const T* sums, int64_t image, Extent rows,
                                  Extent channels) const {
  constexpr int64_t item = sizeof(T);
  T* to = out_ + place(image, rows.begin, channels.begin);
  if (out_strides_.c != 1)
    return copy_matrix(item, sums, 1, pitch_, to, out_strides_.c, channels.size,
                       rows.size * x_.output);
  for (int64_t i = 0; i < rows.size; ++i)
    copy_matrix(item, sums + i * x_.output * pitch_, pitch_, 1, to + i * out_strides_.y,
                out_strides_.x, x_.output, channels.size);
}

template <class T>
auto DepthwiseEngine<T>::totals_of(int64_t block, Extent channels) const -> Totals {
  Totals totals;
  totals.reserve(static_cast<size_t>(ceil_div(channels.size, totals_width())));
  for (int64_t c = 0; c < channels.size; c += totals_width())
    totals.push_back(
        output_.sums(block, channels.begin + c, std::min(totals_width(), channels.size - c)));
  return totals;
}

/// The sums of so many pixels, which follow each other, to the output from `place` on.
template <class T>
void DepthwiseEngine<T>::complete(float* sums, int64_t pixels, int64_t place, Extent channels,
                                  Totals& totals) const {
  for (int64_t at = 0; at < pixels; at += kTileRows)
    for (size_t i = 0; i < totals.size(); ++i) {
      const int64_t c = static_cast<int64_t>(i) * totals_width();
      const int64_t n = std::min(totals_width(), channels.size - c);
      output_.complete_sums(sums + at * pitch_ + c, pitch_, std::min(kTileRows, pixels - at), n,
                            channels.begin + c, place + at * out_strides_.x + c * out_strides_.c,
                            tiles_.get(), totals[i]);
    }
}

}  // namespace

void run_depthwise(const DepthwisePlan& plan, const void* source, const void* packed,
                   const ChannelMap& map, const Epilogue& epilogue, void* output) {
  if (plan.problem.dtype == DType::bf16)
    DepthwiseEngine<bfloat16>(plan, source, packed, map, epilogue, output).run();
  else DepthwiseEngine<float>(plan, source, packed, map, epilogue, output).run();
}

}  // namespace quern::kernels
