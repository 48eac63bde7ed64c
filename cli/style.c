/* style.c: how the page of attn bench --html looks: light and dark as the reader's system says, from a phone's width up. */
#include "bench.h"
#include <stdio.h>

static const char *const rules[] = {
    ":root{color-scheme:light dark;--page:#f6f7f9;--card:#fff;--ink:#1b2330;--soft:#586374;--line:#d9dee6;--track:#e6eaf0;"
    "--f32:#2563c9;--f16:#b45309;--bf16:#0b7f5d;--peer:#8791a1;--roof:#475467;--under:#e9eef7;--bad:#b42318}",
    "@media (prefers-color-scheme:dark){:root{--page:#11151b;--card:#191f28;--ink:#e7ebf1;--soft:#a3aebd;--line:#303947;--track:#29313d;"
    "--f32:#6ea8ff;--f16:#f0a44a;--bf16:#43c79b;--peer:#77839a;--roof:#b4bfce;--under:#1f2836;--bad:#ff8a7d}}",
    "*{box-sizing:border-box}",
    "body{margin:0;background:var(--page);color:var(--ink);font:16px/1.5 system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu "
    "Sans',sans-serif;"
    "-webkit-text-size-adjust:100%;overflow-wrap:anywhere}",
    "main{max-width:1180px;margin:0 auto;padding:20px 16px 48px}",
    "h1{font-size:1.6rem;line-height:1.2;margin:8px 0 4px}h2{font-size:1.2rem;margin:36px 0 4px}h3{font-size:1rem;margin:0}",
    "p{margin:4px 0 12px;max-width:76ch}.soft,figcaption{color:var(--soft);font-size:.9rem}.warn{color:var(--bad)}",
    ".tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(140px,1fr));gap:10px;margin:16px 0}",
    ".tile,.card,figure{background:var(--card);border:1px solid var(--line);border-radius:10px}",
    ".tile{padding:10px 14px}.tile dt{color:var(--soft);font-size:.82rem}.tile "
    "dd{margin:0;font-size:1.25rem;font-weight:650;line-height:1.3}"
    ".tile dd span{display:block;font-size:.82rem;font-weight:400;color:var(--soft)}",
    "figcaption{margin-top:8px}figure{margin:12px 0;padding:14px 12px}.plot{padding:0 14px 44px "
    "46px}.plot>svg{display:block;overflow:visible}",
    "svg text{font:12px system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif;fill:var(--ink)}svg "
    "text.soft{font-size:12px;fill:var(--soft)}"
    "svg text.halo{paint-order:stroke;stroke:var(--card);stroke-width:4px;stroke-linejoin:round}",
    ".grid{stroke:var(--line);stroke-width:1}.leader{stroke:var(--peer);stroke-width:1}.under{fill:var(--under)}"
    ".roof{fill:none;stroke:var(--roof);stroke-width:2;vector-effect:non-scaling-stroke}.axis{stroke:var(--soft)}",
    ".f32 path{fill:var(--f32)}.f16 path{fill:var(--f16)}.bf16 path{fill:var(--bf16)}.mark path{stroke:var(--card);stroke-width:1}",
    ".legend{display:flex;flex-wrap:wrap;gap:4px 18px;list-style:none;margin:0 0 8px;padding:0;font-size:.9rem}"
    ".legend svg{vertical-align:-2px;margin-right:6px;overflow:visible}",
    ".cards{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,340px),1fr));gap:12px;margin-top:12px}",
    ".card{padding:12px 14px}.card h4{margin:12px 0 "
    "2px;font-size:.85rem;font-weight:600;display:flex;justify-content:space-between;gap:8px}"
    ".card h4 span{font-weight:400;color:var(--soft);text-align:right}",
    ".bars{padding:0 110px 0 98px}.bars svg{display:block;overflow:visible}.ceiling{fill:var(--track)}.peer{fill:var(--peer)}"
    ".limit{stroke:var(--roof);stroke-width:2}.bars .f32{fill:var(--f32)}.bars .f16{fill:var(--f16)}.bars .bf16{fill:var(--bf16)}",
    "table{width:100%;border-collapse:collapse;background:var(--card);border:1px solid var(--line);font-size:.82rem;margin-top:8px}"
    "th,td{text-align:right;padding:5px 8px;border-top:1px solid var(--line);vertical-align:top}thead th{color:var(--soft);font-weight:600;"
    "vertical-align:bottom;border-top:0;overflow-wrap:normal}th:first-child,.left{text-align:left}td{font-variant-numeric:tabular-nums;"
    "white-space:nowrap}td.left{white-space:normal}tbody th{font-weight:600;min-width:12em}tbody th span{font-weight:400;font-size:.8rem}",
    "@media (max-width:1000px){table,tbody{display:block}thead{position:absolute;width:1px;height:1px;overflow:hidden;"
    "clip-path:inset(50%)}table{border:0;background:none}tr{display:grid;grid-template-columns:repeat(auto-fill,minmax(118px,1fr));"
    "gap:6px 12px;background:var(--card);border:1px solid var(--line);border-radius:10px;padding:10px 14px;margin-bottom:10px}"
    "td,tbody th{border:0;padding:0;font-size:.88rem;text-align:left;white-space:normal;min-width:0}tbody th{font-size:1rem;"
    "grid-column:1/-1}td:last-child{grid-column:1/"
    "-1}td:empty{display:none}td::before{content:attr(data-label);display:block;color:var(--soft);font-size:.75rem}}",
    "@media print{.card,figure,tr{break-inside:avoid}}",
};

void attn_cli_page_style(FILE *to) {
    fputs("<style>\n", to);
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) fprintf(to, "%s\n", rules[i]);
    fputs("</style>\n", to);
}
