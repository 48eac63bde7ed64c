/* trespass WAY: does what a check program must not survive: "fail" reports a failure, "read" and "write" touch a page that is closed. Ends
 * with 0 when nothing stopped it. */
#include "harness.h"
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv) {
    char *words[] = { argv[0], NULL };
    check_begin("trespass", 1, words, 1);
    if (argc != 2) return 0;
    check_buffer buffer = check_buffer_make(check_page(), CHECK_AT_END);
    volatile unsigned char *end = buffer.data + buffer.size;
    printf("trespass: about to %s\n", argv[1]);
    if (strcmp(argv[1], "read") == 0) (void)end[0];
    if (strcmp(argv[1], "write") == 0) {
        check_buffer_readonly(&buffer);
        end[-1] = 0;
    }
    CHECK(strcmp(argv[1], "fail") != 0, "as asked");
    return check_end();
}
