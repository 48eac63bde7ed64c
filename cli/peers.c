/* peers.c: reads a file of other implementations' figures, peers.json, whose form attn(1) states. Every field is checked before any is
 * used, and the message names the one that is wrong. What the file says ends up on a terminal and in a page: no control characters. */
#include "bench.h"
#include "convert.h"
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { FILE_MOST = 1 << 24, ENTRIES_MOST = 10000, TEXT_MOST = 200 };

typedef struct reader {
    place at;
    char path[32]; /* "entries[3]."; empty at the top */
} reader;

static bool complain(const reader *r, const char *field, const char *rule) {
    return attn_cli_place_error(&r->at, "%s%s: %s", r->path, field, rule);
}

/* Bytes of UTF-8 that jansson has let through: what remains are control characters and what XML does not allow. */
static bool is_plain(const char *text) {
    for (const unsigned char *at = (const unsigned char *)text; *at; at++) {
        if (*at < 0x20 || *at == 0x7f) return false;
        if (*at == 0xc2 && at[1] < 0xa0) return false;                                    /* U+0080 to U+009F */
        if (*at == 0xef && at[1] == 0xbf && at[2] >= 0xbe) return false;                  /* U+FFFE, U+FFFF */
        if (*at == 0xe2 && at[1] == 0x80 && at[2] >= 0xa8 && at[2] <= 0xae) return false; /* line ends, and what turns the direction */
        if (*at == 0xe2 && at[1] == 0x81 && at[2] >= 0xa6 && at[2] <= 0xa9) return false;
    }
    return true;
}

static bool get_text(const reader *r, const json_t *object, const char *field, bool empty, const char **text) {
    const json_t *value = json_object_get(object, field);
    *text = json_is_string(value) ? json_string_value(value) : NULL;
    if (!*text) return complain(r, field, value ? "must be a string" : "is missing");
    size_t length = strlen(*text);
    if (length != json_string_length(value) || length > TEXT_MOST || !is_plain(*text))
        return complain(r, field, "must be at most 200 bytes without control characters");
    return length > 0 || empty || complain(r, field, "must not be empty");
}

static bool get_number(const reader *r, const json_t *object, const char *field, bool positive, double *number) {
    const json_t *value = json_object_get(object, field);
    if (!json_is_number(value)) return complain(r, field, value ? "must be a number" : "is missing");
    *number = json_number_value(value);
    if (!(*number >= (positive ? 1e-30 : 0) && *number <= 1e30)) /* so that quotients are numbers, too */
        return complain(r, field, positive ? "must be a positive number, up to 1e30" : "must be a number from 0 to 1e30");
    return true;
}

static bool read_entry(const reader *r, const json_t *entry, peer *p) {
    const char *type;
    if (!json_is_object(entry)) return attn_cli_place_error(&r->at, "%.*s: must be an object", (int)strlen(r->path) - 1, r->path);
    if (!get_text(r, entry, "case", false, &p->case_name) || !get_text(r, entry, "type", false, &type)) return false;
    if (!attn_cli_type_parse(type, &p->type)) return complain(r, "type", "must be f32, f16 or bf16");
    if (!get_text(r, entry, "peer", false, &p->name) || !get_text(r, entry, "version", true, &p->version)) return false;
    if (!get_number(r, entry, "seconds_median", true, &p->seconds) || !get_number(r, entry, "error", false, &p->error)) return false;
    if (!get_text(r, entry, "note", true, &p->note)) return false;
    return !json_object_get(entry, "ratio") || get_number(r, entry, "ratio", true, &p->ratio);
}

static bool read_entries(reader *r, peers *p) {
    const json_t *entries = json_object_get(p->root, "entries");
    if (!json_is_array(entries)) return complain(r, "entries", entries ? "must be an array" : "is missing");
    if (json_array_size(entries) > ENTRIES_MOST) return complain(r, "entries", "has more than 10000 entries");
    p->entries = calloc(json_array_size(entries) + 1, sizeof *p->entries);
    if (!p->entries) return attn_cli_place_error(&r->at, "no memory for its entries");
    for (; p->count < (int)json_array_size(entries); p->count++) {
        peer *mine = &p->entries[p->count];
        snprintf(r->path, sizeof r->path, "entries[%d].", p->count);
        if (!read_entry(r, json_array_get(entries, (size_t)p->count), mine)) return false;
        for (const peer *other = p->entries; other < mine; other++)
            if (other->type == mine->type && strcmp(other->case_name, mine->case_name) == 0 && strcmp(other->name, mine->name) == 0)
                return complain(r, "peer", "stands there twice for its case and type");
    }
    return true;
}

static bool read_document(reader *r, peers *p) {
    double threads = 0;
    if (!json_is_object(p->root)) return attn_cli_place_error(&r->at, "must be one JSON object");
    if (!get_text(r, p->root, "machine", true, &p->machine) || !get_number(r, p->root, "threads", true, &threads)) return false;
    if (threads != floor(threads) || threads > 65536) return complain(r, "threads", "must be a number of threads");
    p->threads = (int)threads;
    if (json_object_get(p->root, "isa") && !get_text(r, p->root, "isa", false, &p->isa)) return false;
    const json_t *precision = json_object_get(p->root, "precision");
    p->precision = precision && json_is_string(precision) && strcmp(json_string_value(precision), "fast") == 0 ? ATTN_FAST : ATTN_EXACT;
    if (precision && p->precision == ATTN_EXACT && !(json_is_string(precision) && strcmp(json_string_value(precision), "exact") == 0))
        return complain(r, "precision", "must be exact or fast");
    return read_entries(r, p);
}

bool attn_cli_peers_read(const char *path, peers *p) {
    reader r = { { "--compare", path }, "" };
    FILE *file;
    int64_t size;
    json_error_t error;
    memset(p, 0, sizeof *p);
    if (!attn_cli_file_open(&r.at, &file, &size)) return false;
    char *text = size <= FILE_MOST ? malloc((size_t)size + 1) : NULL;
    bool good = text && attn_cli_file_read(&r.at, file, text, (size_t)size, "its text");
    if (!text) attn_cli_place_error(&r.at, size <= FILE_MOST ? "no memory for its text" : "is larger than 16 MB");
    fclose(file);
    if (good) {
        p->root = json_loadb(text, (size_t)size, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error);
        if (!p->root) good = attn_cli_place_error(&r.at, "line %d: is not JSON, or repeats a key", error.line);
    }
    free(text);
    return good && read_document(&r, p);
}

void attn_cli_peers_free(peers *p) {
    free(p->entries);
    json_decref(p->root);
    memset(p, 0, sizeof *p);
}
