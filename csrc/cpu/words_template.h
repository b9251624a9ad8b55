// Products whose instruction sums two neighbours of bfloat16 in the depth, a word of 32 bits, into each lane.
//
// Included after kernels_template.h, whose vectors, shuffles and constants it uses. Panels are filled up with zeros to
// STEP elements of the depth: whole words, or tiles of them.

constexpr int IN_WORD = 2;

// LANES elements of a row, each in a lane's low 16 bits.
inline BitsVec wide(const std::uint16_t* source) {
    return __builtin_convertvector(*reinterpret_cast<const HalfVec*>(source), BitsVec);
}

// Word l: elements k and k + 1 of lane l, where `source` is element (lane 0, k) and `there` of them exist.
inline Vec gathered(const std::uint16_t* source, std::int64_t ld, std::int64_t there) {
    const BitsVec first = there > 0 ? wide(source) : BitsVec{}, second = there > 1 ? wide(source + ld) : BitsVec{};
    return reinterpret_cast<Vec>(first | second << 16);
}

// The same where fewer lanes exist than a vector has.
inline Vec gathered_edge(const std::uint16_t* source, std::int64_t ld, std::int64_t there, std::int64_t lanes) {
    std::uint16_t edge[IN_WORD * LANES] = {};
    for (int place = 0; place < IN_WORD && place < there; ++place)
        for (int lane = 0; lane < lanes; ++lane) edge[place * LANES + lane] = source[place * ld + lane];
    return gathered(edge, LANES, IN_WORD);
}

// LANES words of one lane, where `source` is its element k and `there` elements exist from there on.
inline Vec words_of(const std::uint16_t* source, std::int64_t there) {
    std::uint16_t edge[IN_WORD * LANES] = {};
    if (there < IN_WORD * LANES) {
        for (std::int64_t place = 0; place < there; ++place) edge[place] = source[place];
        source = edge;
    }
    return load(reinterpret_cast<const float*>(source));
}

template <int STEP> inline std::int64_t words_in(std::int64_t depth) {
    return (depth + STEP - 1) / STEP * (STEP / IN_WORD);
}

template <int STEP, int ROWS>
void pack_rows_of_words(const void* data, std::int64_t ld, const Panels& panels, int first, int last,
                        std::int64_t inside, std::int64_t depth, void* packed) {
    const std::int64_t words = words_in<STEP>(depth);
    for (int panel = first; panel < last; ++panel) {
        float* into = static_cast<float*>(packed) + (panel - first) * ROWS * A_STRIDE;
        for (std::int64_t lane = panels.begin(panel); lane < panels.begin(panel + 1); ++lane, into += A_STRIDE) {
            const auto* row = static_cast<const std::uint16_t*>(data) + (lane < inside ? lane * ld : 0);
            for (std::int64_t word = 0; word < words; word += LANES) {
                const std::int64_t k = word * IN_WORD;
                store(into + word, words_of(row + k, lane < inside ? depth - k : 0));
            }
        }
    }
}

// A stored by lanes: words are gathered across its rows, and blocks of them transposed.
template <int STEP, int ROWS>
void pack_columns_of_words(const void* data, std::int64_t ld, const Panels& panels, int first, int last,
                           std::int64_t inside, std::int64_t depth, void* packed) {
    const auto* source = static_cast<const std::uint16_t*>(data);
    const std::int64_t words = words_in<STEP>(depth);
    for (int panel = first; panel < last; ++panel) {
        float* into = static_cast<float*>(packed) + (panel - first) * ROWS * A_STRIDE;
        const std::int64_t begin = panels.begin(panel), end = panels.begin(panel + 1);
        for (std::int64_t lane = begin; lane < end; lane += LANES) {
            const std::int64_t left = inside - lane, lanes = left < 0 ? 0 : left < LANES ? left : LANES;
            for (std::int64_t word = 0; word < words; word += LANES) {
                Vec block[LANES];
                for (int step = 0; step < LANES; ++step) {
                    const std::int64_t k = (word + step) * IN_WORD, there = depth - k;
                    const auto* at = there > 0 && lanes > 0 ? source + k * ld + lane : source;
                    block[step] = lanes == LANES ? gathered(at, ld, there) : gathered_edge(at, ld, there, lanes);
                }
                transpose(block);
                for (int row = 0; row < LANES && lane + row < end; ++row)
                    store(into + (lane - begin + row) * A_STRIDE + word, block[row]);
            }
        }
    }
}

template <int STEP>
void pack_words_by_lanes(const void* data, std::int64_t ld, const Panels& panels, int first, int last,
                         std::int64_t inside, std::int64_t depth, void* packed) {
    const auto* source = static_cast<const std::uint16_t*>(data);
    const std::int64_t words = words_in<STEP>(depth);
    for (std::int64_t word = 0; word < words; ++word) {
        const std::int64_t k = word * IN_WORD, there = depth - k;
        for (int panel = first; panel < last; ++panel) {
            float* into = static_cast<float*>(packed) + ((panel - first) * words + word) * NR;
            for (int block = 0; block < NR; block += LANES) {
                const std::int64_t lane = panels.begin(panel) + block, lanes = inside - lane;
                const bool none = there <= 0 || lanes <= 0;
                const auto* at = none ? source : source + k * ld + lane;
                store(into + block, lanes >= LANES ? gathered(at, ld, there) : gathered_edge(at, ld, there, lanes));
            }
        }
    }
}

template <int STEP>
void pack_words_by_depth(const void* data, std::int64_t ld, const Panels& panels, int first, int last,
                         std::int64_t inside, std::int64_t depth, void* packed) {
    const auto* source = static_cast<const std::uint16_t*>(data);
    const std::int64_t words = words_in<STEP>(depth);
    for (int panel = first; panel < last; ++panel) {
        float* into = static_cast<float*>(packed) + (panel - first) * words * NR;
        for (std::int64_t word = 0; word < words; word += LANES) {
            const std::int64_t k = word * IN_WORD;
            for (int block = 0; block < NR; block += LANES) {
                Vec rows[LANES];
                for (int row = 0; row < LANES; ++row) {
                    const std::int64_t lane = panels.begin(panel) + block + row;
                    fetch_ahead(source + lane * ld + k);
                    const bool there = lane < inside;
                    rows[row] = words_of(there ? source + lane * ld + k : source, there ? depth - k : 0);
                }
                transpose(rows);
                for (int step = 0; step < LANES && word + step < words; ++step)
                    store(into + (word + step) * NR + block, rows[step]);
            }
        }
    }
}

// Rows of weights as an A panel of bfloat16.
inline void pack_scores(const float* scores, int rows, int columns, void* a_panel) {
    to_bfloat16(static_cast<std::uint16_t*>(a_panel), A_STRIDE * 2, scores, A_STRIDE, rows, columns);
}

// Products with micro-kernels of up to ROWS rows.
template <int STEP, int ROWS, typename... MICRO>
constexpr ProductKernels word_products(const char* unit, double rate, decltype(ProductKernels::spin) spin,
                                       double multiply_adds, MICRO... micro) {
    return {unit,
            ROWS,
            NR,
            MAX_DEPTH * IN_WORD,
            rate,
            {{ROWS * A_STRIDE * 4, 0, 1}, {ROWS * A_STRIDE * 4, 0, 1}},
            {0, STEP / IN_WORD * NR * 4, STEP},
            {pack_columns_of_words<STEP, ROWS>, pack_rows_of_words<STEP, ROWS>},
            {pack_words_by_lanes<STEP>, pack_words_by_depth<STEP>},
            {{nullptr, micro...}, {nullptr, micro...}},
            add,
            pack_scores,
            spin,
            multiply_adds};
}
