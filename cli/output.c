/* output.c: writes a tensor to .npy or .safetensors, or any bytes, so that no half-written file ever stands under its name: another name in
 * the same folder first, then a rename. */
#include "tensor.h"
#include <errno.h>
#include <jansson.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { OUTPUTS = 2 }; /* out and lse */

/* What a signal has to remove. Set before the file exists, cleared after the rename. */
static const char *volatile pending[OUTPUTS];
static const int signals[] = { SIGINT, SIGTERM, SIGHUP };

static void on_signal(int number) {
    for (int i = 0; i < OUTPUTS; i++)
        if (pending[i]) unlink(pending[i]);
    signal(number, SIG_DFL);
    raise(number);
}

static void watch(const char *path) {
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
        if (signal(signals[i], on_signal) == SIG_IGN) signal(signals[i], SIG_IGN);
    for (int i = 0; i < OUTPUTS; i++)
        if (!pending[i]) {
            pending[i] = path;
            return;
        }
}

static void unwatch(const char *path) {
    for (int i = 0; i < OUTPUTS; i++)
        if (pending[i] == path) pending[i] = NULL;
}

static bool is_npy(const char *path) {
    const char *dot = strrchr(path, '.');
    return dot && strcmp(dot, ".npy") == 0;
}

static int folder_length(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? (int)(slash - path) + 1 : 0;
}

/* One file: the same last part in the same folder. */
bool attn_cli_output_same(const char *a, const char *b) {
    const char *names[2] = { a, b }, *last[2];
    struct stat folders[2];
    for (int i = 0; i < 2; i++) {
        char folder[PATH_MAX];
        const int length = folder_length(names[i]);
        last[i] = names[i] + length;
        if (snprintf(folder, sizeof folder, "%.*s.", length, names[i]) >= (int)sizeof folder || stat(folder, &folders[i]) != 0)
            return false;
    }
    return strcmp(last[0], last[1]) == 0 && folders[0].st_dev == folders[1].st_dev && folders[0].st_ino == folders[1].st_ino;
}

bool attn_cli_output_place(output *out, const char *option, const char *path) {
    struct stat about;
    memset(out, 0, sizeof *out);
    out->at = (place){ option, path };
    int folder = folder_length(path);
    if (path[folder] == 0) return attn_cli_place_error(&out->at, "a file name must be given");
    if (snprintf(out->temporary, sizeof out->temporary, "%.*s", folder ? folder : 1, folder ? path : ".") >= PATH_MAX - 16)
        return attn_cli_place_error(&out->at, "the name is too long");
    if (access(out->temporary, W_OK | X_OK) != 0) return attn_cli_place_error(&out->at, "its folder: %s", strerror(errno));
    out->temporary[0] = 0;
    if (stat(path, &about) == 0 && !S_ISREG(about.st_mode)) return attn_cli_place_error(&out->at, "exists and is no regular file");
    return true;
}

bool attn_cli_output_check(output *out, const char *option, const char *path, const char *name) {
    const char *dot = strrchr(path, '.');
    out->name = name;
    out->at = (place){ option, path };
    if (!dot || dot <= path + folder_length(path) || (strcmp(dot, ".npy") != 0 && strcmp(dot, ".safetensors") != 0))
        return attn_cli_place_error(&out->at, "the name must end in .npy or .safetensors");
    if (!attn_cli_output_place(out, option, path)) return false;
    out->name = name;
    return true;
}

static size_t npy_header(const tensor *t, char *text, size_t size) {
    static const char *const descr[] = { [ELEMENT_F32] = "<f4", [ELEMENT_F16] = "<f2", [ELEMENT_BF16] = "|V2" };
    char shape[256];
    attn_cli_shape_text(t->shape, t->rank, shape, sizeof shape);
    int used = snprintf(text + 10, size - 10, "{'descr': '%s', 'fortran_order': False, 'shape': %s, }", descr[t->type], shape);
    size_t total = (10 + (size_t)used + 1 + 63) / 64 * 64;
    memset(text + 10 + used, ' ', total - 10 - (size_t)used);
    text[total - 1] = '\n';
    memcpy(text, "\x93NUMPY\x01\x00", 8);
    text[8] = (char)((total - 10) & 255);
    text[9] = (char)((total - 10) >> 8);
    return total;
}

static size_t safetensors_header(const tensor *t, const char *name, char *text, size_t size) {
    static const char *const dtype[] = { [ELEMENT_F32] = "F32", [ELEMENT_F16] = "F16", [ELEMENT_BF16] = "BF16" };
    json_t *shape = json_array();
    for (int i = 0; i < t->rank; i++) json_array_append_new(shape, json_integer(t->shape[i]));
    json_int_t bytes = t->count * (json_int_t)attn_cli_element_size(t->type);
    json_t *root = json_pack("{s:{s:s,s:o,s:[i,I]}}", name, "dtype", dtype[t->type], "shape", shape, "data_offsets", 0, bytes);
    size_t used = root ? json_dumpb(root, text + 8, size - 16, JSON_COMPACT) : 0;
    json_decref(root);
    if (used == 0 || used > size - 16) return 0;
    size_t length = (used + 7) / 8 * 8;
    memset(text + 8 + used, ' ', length - used);
    for (int i = 0; i < 8; i++) text[i] = (char)((uint64_t)length >> 8 * i & 255);
    return 8 + length;
}

static bool write_all(int file, const void *from, size_t bytes) {
    for (const char *at = from; bytes > 0;) {
        ssize_t done = write(file, at, bytes < (1u << 30) ? bytes : (1u << 30));
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) return false;
        at += done;
        bytes -= (size_t)done;
    }
    return true;
}

static bool write_file(int file, const void *first, size_t first_bytes, const void *second, size_t second_bytes) {
    mode_t mask = umask(0);
    umask(mask);
    bool good =
        fchmod(file, 0666 & ~mask) == 0 && write_all(file, first, first_bytes) && write_all(file, second, second_bytes) && fsync(file) == 0;
    int why = errno;
    if (close(file) != 0) return false;
    errno = why;
    return good;
}

bool attn_cli_output_bytes(output *out, const void *first, size_t first_bytes, const void *second, size_t second_bytes) {
    snprintf(out->temporary, sizeof out->temporary, "%.*s.attn-XXXXXX", folder_length(out->at.path), out->at.path);
    watch(out->temporary);
    int file = mkstemp(out->temporary);
    if (file >= 0 && write_file(file, first, first_bytes, second, second_bytes)) return true;
    attn_cli_place_error(&out->at, "cannot be written: %s", strerror(errno));
    attn_cli_output_drop(out);
    return false;
}

bool attn_cli_output_write(output *out, const tensor *t) {
    char header[1024];
    size_t length = is_npy(out->at.path) ? npy_header(t, header, sizeof header) : safetensors_header(t, out->name, header, sizeof header);
    if (length == 0) return attn_cli_place_error(&out->at, "no memory for its header");
    return attn_cli_output_bytes(out, header, length, t->data, (size_t)t->count * attn_cli_element_size(t->type));
}

bool attn_cli_output_commit(output *out) {
    if (rename(out->temporary, out->at.path) != 0) {
        attn_cli_place_error(&out->at, "cannot be written: %s", strerror(errno));
        attn_cli_output_drop(out);
        return false;
    }
    unwatch(out->temporary);
    out->temporary[0] = 0;
    return true;
}

void attn_cli_output_drop(output *out) {
    if (out->temporary[0]) unlink(out->temporary);
    unwatch(out->temporary);
    out->temporary[0] = 0;
}
