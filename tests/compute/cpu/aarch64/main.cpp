// Compares two ISA levels: prints how much was compared, and each part that differs.
#include <stdio.h>

#include "answers.h"

#define DECLARE(level, function) namespace ridgeline { namespace level { void function(Answers& out); } }
DECLARE(scalar, COMPARED)
DECLARE(neon, COMPARED)

int main() {
    Answers expected, given;
    ridgeline::scalar::COMPARED(expected);
    ridgeline::neon::COMPARED(given);
    size_t differ = expected.names != given.names, bytes = 0;
    for (size_t i = 0; i < expected.parts.size() && i < given.parts.size(); ++i) {
        bytes += given.parts[i].size();
        if (expected.parts[i] == given.parts[i]) continue;
        ++differ;
        printf("differs: %s\n", expected.names[i].c_str());
    }
    printf("%zu parts, %zu bytes, %zu differ\n", given.parts.size(), bytes, differ);
    return differ != 0;
}
