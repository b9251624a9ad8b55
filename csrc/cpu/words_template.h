// Products whose instruction sums neighbours in the depth, a word of 32 bits of them, into each lane.
//
// Included by kernels_template.h, whose vectors, shuffles and constants it uses. A Format says what a word is:
//   Source, GROUP            an element as stored; how many make a word
//   STEP                     elements by which panels are filled up with zeros: whole words, or tiles of them
//   Sum, Element             a vector of fp32 or int32, and one of its elements
//   words                    a vector of words, of elements that are neighbours in memory
//   of_a                     words of A as the instruction takes them
//   dot(sum, a, b)           sum[lane] += the products of a's and b's elements in the lane
//   finish_panel(panel, words)   what a packed B panel gets beside its words
//   HEADER                   bytes at the beginning of a B panel: the sums that a product begins with

typedef std::int32_t SumVec __attribute__((vector_size(LANES * 4), may_alias));
typedef std::int16_t ShortVec __attribute__((vector_size(LANES * 2)));

// LANES elements of a row in 16 bits each.
inline HalfVec halves(const std::uint16_t* source) { return *reinterpret_cast<const HalfVec*>(source); }
inline HalfVec halves(const std::int8_t* source) {
    typedef std::int8_t Bytes __attribute__((vector_size(LANES), aligned(1), may_alias));
    return reinterpret_cast<HalfVec>(__builtin_convertvector(*reinterpret_cast<const Bytes*>(source), ShortVec));
}

inline BitsVec wide(HalfVec half) { return __builtin_convertvector(half, BitsVec); }

// Word l: elements k … k + GROUP − 1 of lane l, where `source` is element (lane 0, k) and `there` of them exist. Bytes
// become 16 bits first: GCC takes the step from 8 to 32 element by element.
template <typename Format>
inline Vec gathered(const typename Format::Source* source, std::int64_t ld, std::int64_t there) {
    const auto row = [&](int place) { return place < there ? halves(source + place * ld) : HalfVec{}; };
    BitsVec words;
    if constexpr (Format::GROUP == 2) {
        words = wide(row(0)) | wide(row(1)) << 16;
    } else {
        words = wide((row(0) & 0xff) | row(1) << 8) | wide((row(2) & 0xff) | row(3) << 8) << 16;
    }
    return reinterpret_cast<Vec>(words);
}

// The same where fewer lanes exist than a vector has.
template <typename Format>
inline Vec gathered_edge(const typename Format::Source* source, std::int64_t ld, std::int64_t there,
                         std::int64_t lanes) {
    typename Format::Source edge[Format::GROUP * LANES] = {};
    for (int place = 0; place < Format::GROUP && place < there; ++place)
        for (int lane = 0; lane < lanes; ++lane) edge[place * LANES + lane] = source[place * ld + lane];
    return gathered<Format>(edge, LANES, Format::GROUP);
}

// LANES words of one lane, where `source` is its element k and `there` elements exist from there on.
template <typename Format> inline Vec words_of(const typename Format::Source* source, std::int64_t there) {
    typename Format::Source edge[Format::GROUP * LANES] = {};
    if (there < Format::GROUP * LANES) {
        for (std::int64_t place = 0; place < there; ++place) edge[place] = source[place];
        source = edge;
    }
    return Format::words(source);
}

template <typename Format> inline std::int64_t words_in(std::int64_t depth) {
    return (depth + Format::STEP - 1) / Format::STEP * (Format::STEP / Format::GROUP);
}

template <typename Format> constexpr std::int64_t words_b_bytes = Format::STEP / Format::GROUP * NR * 4;

template <typename Format, int ROWS>
void pack_rows_of_words(const void* data, std::int64_t ld, const Panels& panels, int first, int last,
                        std::int64_t inside, std::int64_t depth, void* packed) {
    const std::int64_t words = words_in<Format>(depth);
    for (int panel = first; panel < last; ++panel) {
        float* into = static_cast<float*>(packed) + (panel - first) * ROWS * A_STRIDE;
        for (std::int64_t lane = panels.begin(panel); lane < panels.begin(panel + 1); ++lane, into += A_STRIDE) {
            const auto* row = static_cast<const typename Format::Source*>(data) + (lane < inside ? lane * ld : 0);
            for (std::int64_t word = 0; word < words; word += LANES) {
                const std::int64_t k = word * Format::GROUP;
                store(into + word, Format::of_a(words_of<Format>(row + k, lane < inside ? depth - k : 0)));
            }
        }
    }
}

// A stored by lanes: words are gathered across its rows, and blocks of them transposed.
template <typename Format, int ROWS>
void pack_columns_of_words(const void* data, std::int64_t ld, const Panels& panels, int first, int last,
                           std::int64_t inside, std::int64_t depth, void* packed) {
    const auto* source = static_cast<const typename Format::Source*>(data);
    const std::int64_t words = words_in<Format>(depth);
    for (int panel = first; panel < last; ++panel) {
        float* into = static_cast<float*>(packed) + (panel - first) * ROWS * A_STRIDE;
        const std::int64_t begin = panels.begin(panel), end = panels.begin(panel + 1);
        for (std::int64_t lane = begin; lane < end; lane += LANES) {
            const std::int64_t left = inside - lane, lanes = left < 0 ? 0 : left < LANES ? left : LANES;
            for (std::int64_t word = 0; word < words; word += LANES) {
                Vec block[LANES];
                for (int step = 0; step < LANES; ++step) {
                    const std::int64_t k = (word + step) * Format::GROUP, there = depth - k;
                    const auto* at = there > 0 && lanes > 0 ? source + k * ld + lane : source;
                    block[step] = Format::of_a(lanes == LANES ? gathered<Format>(at, ld, there)
                                                              : gathered_edge<Format>(at, ld, there, lanes));
                }
                transpose(block);
                for (int row = 0; row < LANES && lane + row < end; ++row)
                    store(into + (lane - begin + row) * A_STRIDE + word, block[row]);
            }
        }
    }
}

template <typename Format> inline float* words_panel(void* packed, int panel, std::int64_t words) {
    return reinterpret_cast<float*>(static_cast<char*>(packed) + panel * (Format::HEADER + words * NR * 4) +
                                    Format::HEADER);
}

template <typename Format>
void pack_words_by_lanes(const void* data, std::int64_t ld, const Panels& panels, int first, int last,
                         std::int64_t inside, std::int64_t depth, void* packed) {
    const auto* source = static_cast<const typename Format::Source*>(data);
    const std::int64_t words = words_in<Format>(depth);
    for (std::int64_t word = 0; word < words; ++word) {
        const std::int64_t k = word * Format::GROUP, there = depth - k;
        for (int panel = first; panel < last; ++panel) {
            float* into = words_panel<Format>(packed, panel - first, words) + word * NR;
            for (int block = 0; block < NR; block += LANES) {
                const std::int64_t lane = panels.begin(panel) + block, lanes = inside - lane;
                const bool none = there <= 0 || lanes <= 0;
                const auto* at = none ? source : source + k * ld + lane;
                store(into + block, lanes >= LANES ? gathered<Format>(at, ld, there)
                                                   : gathered_edge<Format>(at, ld, there, lanes));
            }
        }
    }
    for (int panel = first; panel < last; ++panel)
        Format::finish_panel(words_panel<Format>(packed, panel - first, words), words);
}

template <typename Format>
void pack_words_by_depth(const void* data, std::int64_t ld, const Panels& panels, int first, int last,
                         std::int64_t inside, std::int64_t depth, void* packed) {
    const auto* source = static_cast<const typename Format::Source*>(data);
    const std::int64_t words = words_in<Format>(depth);
    for (int panel = first; panel < last; ++panel) {
        float* into = words_panel<Format>(packed, panel - first, words);
        for (std::int64_t word = 0; word < words; word += LANES) {
            const std::int64_t k = word * Format::GROUP;
            for (int block = 0; block < NR; block += LANES) {
                Vec rows[LANES];
                for (int row = 0; row < LANES; ++row) {
                    const std::int64_t lane = panels.begin(panel) + block + row;
                    fetch_ahead(source + lane * ld + k);
                    rows[row] = words_of<Format>(lane < inside ? source + lane * ld + k : source,
                                                 lane < inside ? depth - k : 0);
                }
                transpose(rows);
                for (int step = 0; step < LANES && word + step < words; ++step)
                    store(into + (word + step) * NR + block, rows[step]);
            }
        }
        Format::finish_panel(into, words);
    }
}

template <typename Format, int ROWS>
void micro_of_words(std::int64_t depth, const void* a_memory, const void* b_memory, void* c, std::int64_t ldc,
                    bool accumulate) {
    using Sum = typename Format::Sum;
    const auto* a_panel = static_cast<const std::int32_t*>(a_memory);
    const auto* header = static_cast<const char*>(b_memory);
    const auto* b_panel = reinterpret_cast<const float*>(header + Format::HEADER);
    const std::int64_t words = (depth + Format::GROUP - 1) / Format::GROUP;
    Sum sum[ROWS][VECTORS] = {};
    if constexpr (Format::HEADER > 0) {
        for (int row = 0; row < ROWS; ++row)
            for (int vector = 0; vector < VECTORS; ++vector)
                sum[row][vector] = *reinterpret_cast<const Sum*>(header + vector * LANES * 4);
    }
    for (std::int64_t word = 0; word < words; ++word, ++a_panel, b_panel += NR) {
        for (int lane = 0; lane < NR; lane += 16) __builtin_prefetch(b_panel + 32 * NR + lane);
        Vec b[VECTORS];
#pragma GCC unroll 4
        for (int vector = 0; vector < VECTORS; ++vector) b[vector] = load(b_panel + vector * LANES);
#pragma GCC unroll 16
        for (int row = 0; row < ROWS; ++row) {
            const Vec a = reinterpret_cast<Vec>(SumVec{} + a_panel[row * A_STRIDE]);
#pragma GCC unroll 4
            for (int vector = 0; vector < VECTORS; ++vector)
                sum[row][vector] = Format::dot(sum[row][vector], a, b[vector]);
        }
    }
    finish<ROWS, VECTORS>(sum, c, ldc, accumulate);
}

// int8 widened to 16 bits, two to a word: sums of two products are exact in 32 bits.
struct WidenedInt8 {
    using Source = std::int8_t;
    using Sum = SumVec;
    using Element = std::int32_t;
    static constexpr int GROUP = 2, STEP = 2, HEADER = 0;

    static Vec words(const Source* source) {
        typedef std::int8_t Bytes __attribute__((vector_size(LANES * 2), aligned(1), may_alias));
        typedef std::int16_t Shorts __attribute__((vector_size(LANES * 4)));
        return reinterpret_cast<Vec>(__builtin_convertvector(*reinterpret_cast<const Bytes*>(source), Shorts));
    }
    static Vec of_a(Vec words) { return words; }
    static void finish_panel(float*, std::int64_t) {}
    static Sum dot(Sum sum, Vec a, Vec b) { return sum + products_of_shorts(a, b); }
};

// Rows of weights as an A panel of bfloat16.
inline void pack_scores(const float* scores, int rows, int columns, void* a_panel) {
    to_bfloat16(static_cast<std::uint16_t*>(a_panel), A_STRIDE * 2, scores, A_STRIDE, rows, columns);
}

template <typename Format, int... ROWS>
constexpr ProductKernels word_products(const char* unit, double rate, std::integer_sequence<int, ROWS...>,
                                       decltype(ProductKernels::pack_scores) pack_scores = nullptr) {
    return {unit,
            MR,
            NR,
            MAX_DEPTH * Format::GROUP,
            rate,
            {{MR * A_STRIDE * 4, 0, 1}, {MR * A_STRIDE * 4, 0, 1}},
            {Format::HEADER, words_b_bytes<Format>, Format::STEP},
            {pack_columns_of_words<Format, MR>, pack_rows_of_words<Format, MR>},
            {pack_words_by_lanes<Format>, pack_words_by_depth<Format>},
            {{nullptr, micro_of_words<Format, ROWS + 1>...}, {nullptr, micro_of_words<Format, ROWS + 1>...}},
            add<typename Format::Element>,
            pack_scores,
            spin_registers<Format>,
            MR * NR * Format::GROUP};
}
