// Files embedded in the program as they are. This source is kept out of unity builds, so that only it is compiled again
// when one of them changes.
//
// From CMake. FIRKIN_REPORT_PAGE: the page without its results, that is template, style, script, Vega's JavaScript and
// its licences, made by assemble_report_page.py. FIRKIN_NOTICES: THIRD_PARTY_NOTICES. FIRKIN_CHARTS: charts.json, here
// ended by a zero.

#define FIRKIN_EMBEDDED(name, file) \
  ".global " name "_begin\n.global " name "_end\n" name "_begin:\n.incbin \"" file "\"\n" name "_end:\n.byte 0\n"

asm(".section .rodata\n" FIRKIN_EMBEDDED("firkin_report_page", FIRKIN_REPORT_PAGE) FIRKIN_EMBEDDED("firkin_notices", FIRKIN_NOTICES)
        FIRKIN_EMBEDDED("firkin_charts", FIRKIN_CHARTS) ".previous\n");
