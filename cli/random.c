/* random.c: the generator. */
#include "random.h"
#include "convert.h"
#include <math.h>
#include <time.h>
#include <unistd.h>

enum { PIECES = 4096 };
static float knots[PIECES + 1];

static uint64_t splitmix(uint64_t *state) {
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

/* The x below which a share p < 1/2 of the distribution lies, by halving. */
static double quantile(double p) {
    double low = -4, high = 0;
    for (int i = 0; i < 40; i++) {
        double middle = 0.5 * (low + high);
        if (0.5 * erfc(-middle / sqrt(2)) < p)
            low = middle;
        else
            high = middle;
    }
    return low;
}

static void make_knots(void) {
    if (knots[PIECES] != 0) return;
    for (int i = 0; i < PIECES / 2; i++) {
        knots[i] = i == 0 ? -4 : (float)quantile((double)i / PIECES);
        knots[PIECES - i] = -knots[i];
    }
}

generator attn_cli_generator(uint64_t seed, uint64_t stream) {
    generator g;
    uint64_t state = seed ^ splitmix(&stream);
    make_knots();
    for (int i = 0; i < 4; i++) g.state[i] = splitmix(&state);
    return g;
}

static uint64_t rotate(uint64_t x, int by) { return x << by | x >> (64 - by); }

uint64_t attn_cli_next(generator *g) {
    uint64_t *s = g->state, result = rotate(s[1] * 5, 7) * 9, shifted = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= shifted;
    s[3] = rotate(s[3], 45);
    return result;
}

int64_t attn_cli_below(generator *g, int64_t limit) { return (int64_t)((attn_cli_next(g) >> 1) % (uint64_t)limit); }
int64_t attn_cli_between(generator *g, int64_t low, int64_t high) { return low + attn_cli_below(g, high - low + 1); }
bool attn_cli_chance(generator *g, int percent) { return attn_cli_below(g, 100) < percent; }

static float normal_of(uint32_t bits) { /* 12 bits choose the piece, 20 the place in it */
    const float *k = knots + (bits >> 20);
    return k[0] + (k[1] - k[0]) * ((float)(bits & 0xfffff) * 0x1p-20f);
}

float attn_cli_normal(generator *g) { return normal_of((uint32_t)(attn_cli_next(g) >> 32)); }

void attn_cli_normal_fill(generator *g, attn_type type, void *to, int64_t count, float scale) {
    enum { BLOCK = 512 };
    float block[BLOCK];
    for (int64_t done = 0; done < count; done += BLOCK) {
        int64_t some = count - done < BLOCK ? count - done : BLOCK;
        for (int64_t i = 0; i < some; i += 2) {
            uint64_t bits = attn_cli_next(g);
            block[i] = normal_of((uint32_t)(bits >> 32)) * scale;
            if (i + 1 < some) block[i + 1] = normal_of((uint32_t)bits) * scale;
        }
        attn_cli_store(type, block, some, (char *)to + (size_t)done * attn_cli_size(type));
    }
}

uint64_t attn_cli_entropy(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    uint64_t state = (uint64_t)now.tv_nsec ^ (uint64_t)now.tv_sec << 20 ^ (uint64_t)getpid() << 40;
    return splitmix(&state) % 1000000;
}
