/* save.c: what attn bench needs of files and of the machine besides reports: a case's tensors as .safetensors, the processor's name. */
#include "bench.h"
#include "convert.h"
#include "options.h"
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

typedef struct piece {
    const char *name;
    attn_type type;
    const void *data;
    json_int_t shape[4]; /* as the layout has it */
    size_t bytes;
} piece;

static piece piece_of(const spec *s, const char *name, attn_type type, const void *data, const int64_t size[4]) {
    bool blhd = s->layout == ATTN_BLHD;
    piece p = { name, type, data, { size[0], size[blhd ? 2 : 1], size[blhd ? 1 : 2], size[3] }, attn_cli_size(type) };
    for (int i = 0; i < 4; i++) p.bytes *= (size_t)size[i];
    return p;
}

static json_t *header_of(const spec *s, const piece *pieces, int count) {
    static const char *const dtype[] = { [ATTN_F32] = "F32", [ATTN_F16] = "F16", [ATTN_BF16] = "BF16" };
    json_int_t at = 0;
    json_t *root = json_pack("{s:{s:s,s:s}}", "__metadata__", "case", s->name, "layout", s->layout == ATTN_BLHD ? "blhd" : "bhld");
    if (root && s->causal) json_object_set_new(json_object_get(root, "__metadata__"), "causal", json_string(attn_cli_align(s->align)));
    for (int i = 0; i < count; i++) {
        const piece *p = &pieces[i];
        json_int_t end = at + (json_int_t)p->bytes;
        json_object_set_new(root, p->name,
                            json_pack("{s:s,s:[I,I,I,I],s:[I,I]}", "dtype", dtype[p->type], "shape", p->shape[0], p->shape[1], p->shape[2],
                                      p->shape[3], "data_offsets", at, end));
        at = end;
    }
    return root;
}

/* Nothing but q, k, v, a plain causal band and dense strides. */
static bool is_plain(const spec *s) {
    return s->strides == STRIDES_DENSE && s->mask == ATTN_NONE && !s->window && s->offset == 0 && !s->scaled && s->softcap == 0 &&
           !s->sinks && !s->slopes && !s->lens_q && !s->lens_kv && s->type_out == s->type_q;
}

bool attn_cli_workload_save(const spec *s, const workload *w, const char *path) {
    const attn_problem *p = &w->problem;
    output file;
    char *text = NULL;
    size_t size = 0;
    const piece pieces[] = {
        piece_of(s, "q", p->type_q, w->args.q, (int64_t[]){ p->batch, p->heads_q, p->len_q, p->dim_qk }),
        piece_of(s, "k", p->type_k, w->args.k, (int64_t[]){ p->batch, p->heads_kv, p->len_kv, p->dim_qk }),
        piece_of(s, "v", p->type_v, w->args.v, (int64_t[]){ p->batch, p->heads_kv, p->len_kv, p->dim_v }),
    };
    size_t length = strlen(path);
    if (!attn_cli_output_place(&file, "--save", path)) return false;
    if (length < 13 || strcmp(path + length - 12, ".safetensors") != 0)
        return attn_cli_place_error(&file.at, "the name must end in .safetensors");
    if (!is_plain(s)) return attn_cli_place_error(&file.at, "%s has more to it than q, k, v and a causal band", s->name);
    json_t *header = header_of(s, pieces, 3);
    FILE *stream = open_memstream(&text, &size);
    bool good = stream && header;
    for (int i = 0; good && i < 8; i++) fputc(0, stream); /* the header's length, known in the end */
    good = good && json_dumpf(header, stream, JSON_COMPACT) == 0;
    while (good && ftell(stream) % 8) fputc(' ', stream);
    long begin = good ? ftell(stream) : 0;
    for (int i = 0; good && i < 3; i++) good = fwrite(pieces[i].data, 1, pieces[i].bytes, stream) == pieces[i].bytes;
    if (stream && fclose(stream) != 0) good = false;
    json_decref(header);
    for (int i = 0; good && i < 8; i++) text[i] = (char)((uint64_t)(begin - 8) >> 8 * i & 255);
    if (!good) attn_cli_error("memory: none for %s", path);
    good = good && attn_cli_output_bytes(&file, text, size, "", 0) && attn_cli_output_commit(&file);
    free(text);
    return good;
}

void attn_cli_machine_text(char *text, size_t size) {
    char line[512];
    FILE *file = fopen("/proc/cpuinfo", "r");
    *text = 0;
    while (file && *text == 0 && fgets(line, sizeof line, file)) {
        const char *colon = strchr(line, ':');
        if (!colon || strncmp(line, "model name", 10) != 0) continue;
        size_t used = 0;
        for (colon++; *colon == ' '; colon++) continue;
        for (; *colon && used + 1 < size; colon++)
            if (isprint((unsigned char)*colon)) text[used++] = *colon;
        text[used] = 0;
    }
    if (file) fclose(file);
}
