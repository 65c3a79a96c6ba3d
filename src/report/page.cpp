#include "page.h"

// The assembler includes the files as they are. FIRKIN_REPORT_PAGE, FIRKIN_RENDER_SCRIPT and FIRKIN_NOTICES: their paths, from CMake.
asm(".section .rodata\n"
    ".global firkin_report_page_begin\n.global firkin_report_page_end\n"
    ".global firkin_render_script_begin\n.global firkin_render_script_end\n"
    ".global firkin_notices_begin\n.global firkin_notices_end\n"
    "firkin_report_page_begin:\n.incbin \"" FIRKIN_REPORT_PAGE
    "\"\n"
    "firkin_report_page_end:\n"
    "firkin_render_script_begin:\n.incbin \"" FIRKIN_RENDER_SCRIPT
    "\"\n"
    "firkin_render_script_end:\n"
    "firkin_notices_begin:\n.incbin \"" FIRKIN_NOTICES
    "\"\n"
    "firkin_notices_end:\n"
    ".previous\n");

extern "C" {
extern const char firkin_report_page_begin[];
extern const char firkin_report_page_end[];
extern const char firkin_render_script_begin[];
extern const char firkin_render_script_end[];
extern const char firkin_notices_begin[];
extern const char firkin_notices_end[];
}

namespace firkin {

std::string_view empty_page() {
  return {firkin_report_page_begin, firkin_report_page_end};
}

std::string_view render_charts_script() {
  return {firkin_render_script_begin, firkin_render_script_end};
}

std::string_view third_party_notices() {
  return {firkin_notices_begin, firkin_notices_end};
}

}  // namespace firkin
