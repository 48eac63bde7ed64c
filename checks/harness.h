/* harness.h: what every check program shares: reporting, random numbers, guarded memory, element types, cases, and attention written a
 * second time (in double, from the definition, sharing no code with the library). */
#ifndef CHECK_HARNESS_H
#define CHECK_HARNESS_H
#include "attn/attn.h"
#include <stdbool.h>
#ifdef _WIN32 /* whose own printf knows no %zu: the compiler's does the work */
#define CHECK_FORMAT(format_at, values_at) __attribute__((format(gnu_printf, format_at, values_at)))
#else
#define CHECK_FORMAT(format_at, values_at) __attribute__((format(printf, format_at, values_at)))
#endif

/* ---- reporting ---- */
/* Prints place, condition, values, seed and the case at hand, then goes on; the program gives up after 20 failures. */
#define CHECK(condition, ...) ((condition) ? (void)0 : check_fail(__FILE__, __LINE__, #condition, __VA_ARGS__))
#define CHECK_OK(call, what)                                                                                                               \
    do {                                                                                                                                   \
        attn_status check_status_ = (call);                                                                                                \
        CHECK(check_status_ == ATTN_OK, "%s: %s", what, attn_status_text(check_status_));                                                  \
    } while (0)
enum { CHECK_EXIT_OK = 0, CHECK_EXIT_FAILED = 1, CHECK_EXIT_SKIPPED = 77 };

void check_fail(const char *file, int line, const char *condition, const char *format, ...) CHECK_FORMAT(4, 5);
/* Reads the command line: [seed [count]]. Prints the seed, so that a failure can be repeated. */
void check_begin(const char *program, int argc, char **argv, uint64_t seed);
/* How often to do what is done `count` times by default: the command line's count, or ATTN_CHECK_SCALE in the environment times it. */
int check_count(int count);
/* Prints the verdict; the exit status. */
int check_end(void);
/* `program: skip: reason`; the exit status that means it. */
int check_skip(const char *program, const char *reason);

extern uint64_t check_seed;   /* of the program; item n of a loop uses check_seed + n, so that `program SEED+n 1` repeats it */
extern char check_note[1024]; /* the case at hand, for check_fail; set by check_case_note */
int check_failures(void);

/* ---- random numbers: xoshiro256** ---- */
typedef struct check_random {
    uint64_t state[4];
} check_random;
check_random check_random_from(uint64_t seed);
uint64_t check_next(check_random *random);
int64_t check_below(check_random *random, int64_t count); /* 0 <= result < count */
bool check_chance(check_random *random, double probability);
double check_uniform(check_random *random, double low, double high);
double check_normal(check_random *random);
#define CHECK_PICK(random, array) ((array)[check_below(random, (int64_t)(sizeof(array) / sizeof((array)[0])))])

/* ---- the operating system's part ---- */
typedef enum check_access { CHECK_CLOSED, CHECK_READ, CHECK_WRITE } check_access;
size_t check_page(void);             /* bytes */
void *check_pages_take(size_t size); /* a range of addresses that nobody may touch yet; NULL where there is none of that size */
bool check_pages_allow(void *from, size_t size, check_access access); /* whole pages; false where memory is out */
void check_pages_give(void *from, size_t size);
void check_variable(const char *name, const char *value); /* of the environment; value NULL: none of that name */

/* ---- memory between two pages that must not be touched ---- */
typedef enum check_side { CHECK_AT_END, CHECK_AT_START } check_side; /* which page the bytes stand flush against */
enum { CHECK_FILL = 0xff };                                          /* a NaN in every float type, and not the one that arithmetic makes */
typedef struct check_buffer {
    unsigned char *data; /* NULL: no buffer */
    size_t size;
    unsigned char *map;
    size_t map_size;
} check_buffer;
check_buffer check_buffer_make(size_t size, check_side side); /* filled with CHECK_FILL; ends the program when memory runs out */
void check_buffer_free(check_buffer *buffer);
void check_buffer_readonly(const check_buffer *buffer);
void check_buffer_writable(const check_buffer *buffer);

/* ---- element types ---- */
size_t check_size(attn_type type);
const char *check_type_name(attn_type type);
double check_round(attn_type type, double value); /* the nearest value of the type, ties to even */
double check_ulp(attn_type type, double value);   /* distance between neighbours of the type at |value| */
double check_lowest(attn_type type);              /* the most negative finite value */
double check_load(attn_type type, const void *element);
void check_store(attn_type type, void *element, double value);

/* ---- tensors: [batch, head, row, last], strides in elements ---- */
typedef struct check_tensor {
    attn_type type;
    int64_t size[4], stride[4];
    unsigned char *base; /* element (0, 0, 0, 0) */
    check_buffer buffer; /* exactly the bytes from the lowest element to the highest */
} check_tensor;
void check_tensor_place(check_tensor *tensor, check_side side);
unsigned char *check_at(const check_tensor *tensor, int64_t b, int64_t h, int64_t i, int64_t e);
double check_get(const check_tensor *tensor, int64_t b, int64_t h, int64_t i, int64_t e);
void check_set(check_tensor *tensor, int64_t b, int64_t h, int64_t i, int64_t e, double value);

/* ---- cases: a problem, its tensors and its arguments ---- */
typedef enum check_values {
    CHECK_NORMAL,   /* standard normal */
    CHECK_LARGE,    /* logits of about 1e4 */
    CHECK_POSITIVE, /* all of one sign */
    CHECK_WIDE,     /* magnitudes over many powers of two */
    CHECK_LEVEL,    /* all scores 0; values of one sign, each dimension its own one value: every rounding error has the same sign */
    CHECK_TINY      /* values that are subnormal in their type */
} check_values;
typedef enum check_arrangement { CHECK_DENSE_BHLD, CHECK_DENSE_BLHD, CHECK_STRIDED, CHECK_ARRANGEMENTS } check_arrangement;
typedef struct check_case {
    attn_problem problem;
    attn_args args;
    bool with_lse, with_sinks, with_slopes, with_len_q, with_len_kv; /* which optional arguments check_case_build makes */
    double hidden;                                                   /* share of mask entries that hide */
    check_tensor q, k, v, out, lse, mask;
    check_buffer sinks, slopes, len_q, len_kv, workspace;
    double weight_error; /* of the last forward: attn_explanation's, which the bound grows by */
    int64_t chunk;       /* the same: what the bound counts folds by */
} check_case;

/* Dense BHLD of one type, lse wanted, nothing else. Then change problem and flags, arrange, build. */
void check_case_init(check_case *c, attn_type type, int64_t batch, int64_t heads_q, int64_t heads_kv, int64_t len_q, int64_t len_kv,
                     int64_t dim);
/* Chooses every stride but the mask's. CHECK_STRIDED: any axis order, padding, signs; broadcast K and V at times. */
void check_case_arrange(check_case *c, check_random *random, check_arrangement arrangement);
/* Chooses the mask's strides: broadcast, transposed and negative ones at times. */
void check_case_arrange_mask(check_case *c, check_random *random);
/* Allocates all tensors flush against `side` and fills them. */
void check_case_build(check_case *c, check_random *random, check_values values, check_side side);
/* Any problem at all, of at most about `work` multiply-adds; not yet built. */
void check_case_random(check_case *c, check_random *random, double work);
void check_case_free(check_case *c);
void check_case_note(const check_case *c, const char *prefix);                    /* into check_note */
void check_case_clear(check_case *c);                                             /* out and lse to CHECK_FILL */
void check_case_readonly(check_case *c, bool readonly);                           /* all inputs */
void check_case_workspace(check_case *c, attn_context *context, check_side side); /* a workspace of exactly the size asked for, of NaN */
int64_t check_len_q(const check_case *c, int64_t b);
int64_t check_len_kv(const check_case *c, int64_t b);
/* Whether lengths and band (not masks) let row i see key j, and whether everything does. */
bool check_in_band(const check_case *c, int64_t b, int64_t i, int64_t j);
bool check_visible(const check_case *c, int64_t b, int64_t h, int64_t i, int64_t j);
/* Clears the outputs, calls forward, and checks the status and that nothing but rows below len_q was written. Notes weight_error and chunk.
 */
void check_case_forward(check_case *c, attn_context *context);
void check_case_gaps(const check_case *c);
/* A copy of the outputs' bytes (out, then lse), and the comparison with it: byte for byte. */
typedef struct check_bits {
    unsigned char *data;
    size_t size;
} check_bits;
check_bits check_bits_take(const check_case *c);
void check_bits_same(const check_bits *bits, const check_case *c, const char *what);
void check_bits_free(check_bits *bits);

/* ---- contexts ---- */
enum { CHECK_ISAS = 8 };
/* The ISAs of the cpu device on this machine, "scalar" first; their number. */
int check_isas(char names[CHECK_ISAS][16]);
/* The precision of contexts opened from now on by the two functions below; exact at first. */
extern attn_precision check_precision;
attn_context *check_open(const char *isa, int threads, int passes, int64_t chunk); /* cpu */
/* The same plan as with that many threads, but one thread does all, the last task first: idle threads that wait busily cost time. */
attn_context *check_open_serial(const char *isa, int threads, int passes, int64_t chunk);
attn_context *check_open_reference(void);
/* What the context says of a problem; weight_error is checked to be none, or that of bf16 or less. */
attn_explanation check_explain(attn_context *context, const attn_problem *problem);
/* Whether the ISA rounds weights of any problem in the precision fast. */
bool check_rounds(const char *isa);

/* ---- the second opinion ---- */
typedef struct check_row {
    int64_t b, h, i;
    double lse, l;   /* l: largest |scale| sum |q k| + |bias|, of the keys whose share float32 can hold */
    double l_lse;    /* the same for lse's bound */
    int64_t s;       /* visible keys */
    double *out, *a; /* [dim_v] */
} check_row;
typedef struct check_expected {
    check_row *rows;
    int64_t count;
    double *storage;
} check_expected;
/* The definition in double for every row, or for `limit` of them where there are more (first and last rows always among them). */
check_expected check_expect(const check_case *c, int64_t limit, check_random *random);
void check_expected_free(check_expected *expected);
typedef struct check_worst {
    double ratio; /* the largest so far: (error - ulp/2) / (bound - ulp/2) */
    int64_t b, h, i, e;
    uint64_t seed;
    double lse_ratio;
    int64_t elements, rounded; /* 16-bit outputs: how many, and how many are the correctly rounded ones */
    double relative;           /* a case's largest error over its largest output, the largest of any case */
} check_worst;
/* Compares out and lse with what is expected; a ratio above `slack` (1: the bound itself) is a failure. */
void check_compare(const check_case *c, const check_expected *expected, double slack, const char *what, check_worst *worst);
#endif
