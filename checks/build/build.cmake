# The checks of what is built and of how: header, symbols, binary, installation, layout of the sources.
set(here ${CMAKE_CURRENT_SOURCE_DIR}/build)
set(header ${PROJECT_SOURCE_DIR}/include/attn/attn.h)

attn_check(build.header build 60 ${here}/header.sh ${header} gcc clang-14)
attn_check(build.symbols build 60 ${here}/symbols.sh ${header} $<TARGET_FILE:attn_shared> $<TARGET_FILE:attn_static>)
attn_check(build.binary build 60 ${here}/binary.sh $<TARGET_FILE:attn_shared> ${here}/imports.txt $<TARGET_SONAME_FILE_NAME:attn_shared>)
attn_check(build.install build 300 ${here}/install.sh ${PROJECT_BINARY_DIR} ${PROJECT_SOURCE_DIR})
# Compiles the library twice, on both of the CPUs that it counts for.
attn_check(build.wheel build 600 ${ATTN_PYTHON} ${here}/wheel.py ${PROJECT_SOURCE_DIR})
set_tests_properties(build.wheel PROPERTIES PROCESSORS 2 ENVIRONMENT "CMAKE_BUILD_PARALLEL_LEVEL=2;PYTHONDONTWRITEBYTECODE=1")
attn_check(build.format build 60 ${PROJECT_SOURCE_DIR}/scripts/format.sh --check)
attn_check(build.sources build 60 ${here}/sources.sh ${PROJECT_SOURCE_DIR})
