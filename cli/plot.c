/* plot.c: the roofline plot: operations a byte against operations a second, both axes logarithmic. Across, everything stands in percent, so
 * that the plot is as wide as the screen while its letters and marks keep their size. */
#include "bench.h"
#include "convert.h"
#include <math.h>
#include <string.h>

enum { HEIGHT = 380, NARROW = 240 /* px across on a phone: labels that are apart there are apart everywhere */, LABELS_MOST = 256 };

typedef struct axes {
    double left, right, bottom, top; /* log10 of operations a byte, of operations a second */
} axes;
typedef struct label {
    double x, y, width; /* px at NARROW: the middle, the base line */
} label;

static double across(const axes *a, double intensity) { return 100 * (log10(intensity) - a->left) / (a->right - a->left); }
static double down(const axes *a, double rate) { return HEIGHT * (a->top - log10(rate)) / (a->top - a->bottom); }

static bool point_of(const row *w, double *intensity, double *rate) {
    if (!w->timed || !(w->timing.bytes > 0) || !(w->timing.operations > 0)) return false;
    *intensity = w->timing.operations / w->timing.bytes;
    *rate = w->timing.operations / w->timing.median;
    return true;
}

static int memory_of(const ceiling_kind *kinds, int count) {
    int i = 0;
    while (i < count && kinds[i].types != 0) i++;
    return i;
}

static void include(axes *a, double intensity, double rate) {
    a->left = fmin(a->left, log10(intensity));
    a->right = fmax(a->right, log10(intensity));
    a->bottom = fmin(a->bottom, log10(rate));
    a->top = fmax(a->top, log10(rate));
}

/* Around all points and the ridges where slope and ceilings meet. */
static bool set_axes(const report *r, axes *a) {
    const ceiling_kind *kinds;
    double intensity, rate;
    bool any = false;
    int count = attn_cli_ceilings(&kinds);
    double memory = attn_cli_page_ceiling(r, memory_of(kinds, count));
    *a = (axes){ INFINITY, -INFINITY, INFINITY, -INFINITY };
    for (int i = 0; i < r->count; i++)
        if (point_of(&r->rows[i], &intensity, &rate)) include(a, intensity, rate), any = true;
    for (int i = 0; any && i < count; i++)
        if (kinds[i].types && memory > 0 && attn_cli_page_ceiling(r, i) > 0)
            include(a, attn_cli_page_ceiling(r, i) / memory, attn_cli_page_ceiling(r, i));
    a->left -= 0.3, a->right += 0.3, a->bottom -= 0.35, a->top += 0.25;
    return any;
}

/* ---- grid ---- */
static void tick(FILE *to, const axes *a, double power, bool horizontal) {
    double value = pow(10, power);
    if (horizontal) {
        double y = down(a, value);
        fprintf(to, "<line class=\"grid\" x1=\"0\" x2=\"100%%\" y1=\"%.1f\" y2=\"%.1f\"/>", y, y);
        fprintf(to, "<text class=\"soft\" x=\"-8\" y=\"%.1f\" text-anchor=\"end\">%g</text>\n", y + 4, value * 1e-9);
    } else {
        double x = across(a, value);
        fprintf(to, "<line class=\"grid\" x1=\"%.2f%%\" x2=\"%.2f%%\" y1=\"0\" y2=\"%d\"/>", x, x, HEIGHT);
        fprintf(to, "<text class=\"soft\" x=\"%.2f%%\" y=\"%d\" text-anchor=\"middle\">%g</text>\n", x, HEIGHT + 18, value);
    }
}

static void draw_grid(FILE *to, const axes *a) {
    static const double steps[] = { 0, 0.30103, 0.69897 }; /* 1, 2, 5; the tens alone where there is much to show */
    for (int vertical = 0; vertical < 2; vertical++) {
        double low = vertical ? a->bottom : a->left, high = vertical ? a->top : a->right;
        int some = high - low > (vertical ? 4 : 2.2) ? 1 : 3;
        for (int power = (int)floor(low); power <= (int)ceil(high); power++)
            for (int i = 0; i < some; i++)
                if (power + steps[i] >= low && power + steps[i] <= high) tick(to, a, power + steps[i], vertical);
    }
    fprintf(to, "<line class=\"axis\" x1=\"0\" x2=\"100%%\" y1=\"%d\" y2=\"%d\"/>", HEIGHT, HEIGHT);
    fprintf(to, "<line class=\"axis\" x1=\"0\" x2=\"0\" y1=\"0\" y2=\"%d\"/>\n", HEIGHT);
    fprintf(to, "<text class=\"soft\" x=\"50%%\" y=\"%d\" text-anchor=\"middle\">operations a byte</text>\n", HEIGHT + 38);
}

/* ---- ceilings ---- */
static void draw_roofs(FILE *to, const report *r, const axes *a) {
    const ceiling_kind *kinds;
    int count = attn_cli_ceilings(&kinds), m = memory_of(kinds, count);
    double memory = attn_cli_page_ceiling(r, m), highest = 0;
    if (memory <= 0) return;
    for (int i = 0; i < count; i++)
        if (kinds[i].types) highest = fmax(highest, attn_cli_page_ceiling(r, i));
    double x0 = 0, y0 = down(a, memory * pow(10, a->left)), xr = across(a, highest / memory), yr = down(a, highest);
    fputs("<svg width=\"100%\" height=\"", to);
    fprintf(to, "%d\" viewBox=\"0 0 100 %d\" preserveAspectRatio=\"none\" aria-hidden=\"true\">", HEIGHT, HEIGHT);
    fprintf(to, "<path class=\"under\" d=\"M%.2f %.2fL%.2f %.2fL100 %.2fV%dH0Z\"/>", x0, y0, xr, yr, yr, HEIGHT);
    fprintf(to, "<path class=\"roof\" d=\"M%.2f %.2fL%.2f %.2fH100\"/>", x0, y0, xr, yr);
    for (int i = 0; i < count; i++) {
        double rate = kinds[i].types ? attn_cli_page_ceiling(r, i) : 0;
        if (rate > 0 && rate < highest) fprintf(to, "<path class=\"roof\" d=\"M%.2f %.2fH100\"/>", across(a, rate / memory), down(a, rate));
    }
    fputs("</svg>\n", to);
}

static void name_roofs(FILE *to, const report *r, const axes *a, label *taken, int *used) {
    const ceiling_kind *kinds;
    int count = attn_cli_ceilings(&kinds), m = memory_of(kinds, count);
    for (int i = 0; i < count; i++) {
        double rate = attn_cli_page_ceiling(r, i);
        if (rate <= 0) continue;
        double y = i == m ? HEIGHT - 10 : down(a, rate) - 8;
        const char *anchor = i == m ? "start" : "end", *x = i == m ? "8" : "100%";
        fprintf(to, "<text class=\"halo soft\" x=\"%s\" y=\"%.1f\" text-anchor=\"%s\">", x, y, anchor);
        attn_cli_text(to, "%s%s %.0f %s", i == m ? "slope: " : "", kinds[i].title, rate * 1e-9, kinds[i].unit);
        fputs("</text>\n", to);
        taken[(*used)++] = (label){ i == m ? 90 : NARROW - 90, y, 180 };
    }
}

/* ---- points ---- */
static void draw_mark(FILE *to, attn_type type) {
    fputs(type == ATTN_F32   ? "<path d=\"M-5 0A5 5 0 1 1 5 0A5 5 0 1 1 -5 0Z\"/>"
          : type == ATTN_F16 ? "<path d=\"M-4.5 -4.5H4.5V4.5H-4.5Z\"/>"
                             : "<path d=\"M0 -6L6 0L0 6L-6 0Z\"/>",
          to);
}

static void draw_points(FILE *to, const report *r, const axes *a, label *taken, int *used) {
    double intensity, rate;
    for (int i = 0; i < r->count; i++) {
        const row *w = &r->rows[i];
        if (!point_of(w, &intensity, &rate)) continue;
        double x = across(a, intensity), y = down(a, rate);
        fprintf(to, "<svg class=\"mark %s\" x=\"%.2f%%\" y=\"%.1f\" width=\"1\" height=\"1\" overflow=\"visible\"><title>",
                attn_cli_type(w->type), x, y);
        attn_cli_text(to, "%s %s: %.1f operations a byte, %.1f GFLOP/s, share %.2f", w->name, attn_cli_type(w->type), intensity,
                      rate * 1e-9, w->timing.share);
        fputs("</title>", to);
        draw_mark(to, w->type);
        fputs("</svg>\n", to);
        if (*used < LABELS_MOST) taken[(*used)++] = (label){ x / 100 * NARROW, y + 5, 10 };
    }
}

static bool is_free(const label *taken, int used, const label *l) {
    for (int i = 0; i < used; i++)
        if (fabs(taken[i].x - l->x) < 0.5 * (taken[i].width + l->width) + 1 && fabs(taken[i].y - l->y) < 12) return false;
    return l->y > 10 && l->y < HEIGHT - 4;
}

/* One name for the types of a case that lie close together, above or below them where there is room, with a line to it if it is far. */
static void name_points(FILE *to, const report *r, const axes *a, label *taken, int used) {
    static const int shifts[] = { -9, 19, -22, 32, -35, 45, -48, 58, -61, 71, -74, 84, -87, 97, -100, 110 };
    double x, y, intensity, rate, named_x = 0, named_y = 0;
    const char *named = "";
    for (int i = 0; i < r->count; i++) {
        const row *w = &r->rows[i];
        if (!point_of(w, &intensity, &rate)) continue;
        x = across(a, intensity), y = down(a, rate);
        bool again = strcmp(named, w->name) == 0 && fabs(named_x - x) < 1 && fabs(named_y - y) < 30;
        named = w->name, named_x = x, named_y = y;
        if (again || used >= LABELS_MOST || strlen(w->name) > 12) continue;
        label l = { x / 100 * NARROW, 0, 7.0 * (double)strlen(w->name) };
        for (size_t n = 0; n < sizeof shifts / sizeof *shifts; n++) {
            l.y = y + shifts[n];
            if (!is_free(taken, used, &l)) continue;
            if (n > 1)
                fprintf(to, "<line class=\"leader\" x1=\"%.2f%%\" x2=\"%.2f%%\" y1=\"%.1f\" y2=\"%.1f\"/>", x, x,
                        y + (shifts[n] < 0 ? -7 : 7), l.y + (shifts[n] < 0 ? 2 : -11));
            fprintf(to, "<text class=\"halo\" x=\"%.2f%%\" y=\"%.1f\" text-anchor=\"middle\">", x, l.y);
            attn_cli_text(to, "%s", w->name);
            fputs("</text>\n", to);
            taken[used++] = l;
            break;
        }
    }
}

static void write_legend(FILE *to, const report *r) {
    fputs("<ul class=\"legend\">", to);
    for (attn_type type = ATTN_F32; type <= ATTN_BF16; type++) {
        bool any = false;
        for (int i = 0; i < r->count; i++) any |= r->rows[i].type == type && r->rows[i].timed;
        if (!any) continue;
        fprintf(to, "<li><svg class=\"mark %s\" width=\"12\" height=\"12\" viewBox=\"-6 -6 12 12\" aria-hidden=\"true\">",
                attn_cli_type(type));
        draw_mark(to, type);
        fprintf(to, "</svg>%s</li>", attn_cli_type(type));
    }
    fputs("</ul>\n", to);
}

void attn_cli_page_roofline(FILE *to, const report *r) {
    axes a;
    label taken[LABELS_MOST];
    int used = 0;
    if (!set_axes(r, &a)) return;
    fputs("<section>\n<h2>Roofline</h2>\n<figure>\n", to);
    write_legend(to, r);
    fputs("<p class=\"soft\" aria-hidden=\"true\">GFLOP/s</p>\n<div class=\"plot\">\n<svg id=\"roofline\" width=\"100%\" height=\"", to);
    fprintf(to, "%d\" role=\"img\" aria-labelledby=\"roofline-title roofline-desc\">\n", HEIGHT);
    fputs("<title id=\"roofline-title\">Roofline plot</title>\n<desc id=\"roofline-desc\">Operations a byte of memory against billions of "
          "operations a second, both logarithmic: one point for each case and type, below the slope of the memory and the ceilings of the "
          "arithmetic. The same figures stand in the tables below.</desc>\n",
          to);
    draw_roofs(to, r, &a);
    draw_grid(to, &a);
    name_roofs(to, r, &a, taken, &used);
    draw_points(to, r, &a, taken, &used);
    name_points(to, r, &a, taken, used);
    fputs("</svg>\n</div>\n<figcaption>On the slope a case is as fast as memory can be read; at a ceiling, as fast as the machine can "
          "multiply and add. Lines are the means of what was measured around the cases; each share is set against its own "
          "case\xe2\x80\x99s.</figcaption>\n</figure>\n</section>\n",
          to);
}
