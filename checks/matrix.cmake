# The same checks by another compiler, under sanitizers, with AMX in plain C, and under valgrind. Each variant is a build folder of its own below this one, made by
# a test that the variant's other tests wait for.

# attn_variant(NAME COMPILER SCALE PROGRAMS OPTION...): SCALE times as many random cases as usual, for what runs slowly.
function(attn_variant name compiler scale programs)
    set(folder ${PROJECT_BINARY_DIR}/${name})
    attn_check(${name}.build ${name} 300 ${PROJECT_SOURCE_DIR}/scripts/build.sh ${folder} -DCMAKE_C_COMPILER=${compiler}
        -DATTN_WERROR=ON -DATTN_WITH_CUDA=OFF -DATTN_BUILD_CHECKS=ON -DATTN_CHECK_MATRIX=OFF ${ARGN})
    # Compiles two files at once, so it counts as two tests.
    set_tests_properties(${name}.build PROPERTIES FIXTURES_SETUP ${name} PROCESSORS 2)
    foreach(program IN LISTS programs)
        if(EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/${program}.c)
            attn_check(${name}.${program} ${name} 600 ${folder}/checks/${program} ${${name}_${program}_arguments})
            set_tests_properties(${name}.${program} PROPERTIES FIXTURES_REQUIRED ${name}
                ENVIRONMENT "ATTN_CHECK_SCALE=${scale};${attn_sanitizer_environment}")
            if(program IN_LIST fuzzers)
                set_property(TEST ${name}.${program} APPEND PROPERTY LABELS fuzz)
            endif()
        endif()
    endforeach()
endfunction()

file(GLOB sources CONFIGURE_DEPENDS RELATIVE ${CMAKE_CURRENT_SOURCE_DIR} fuzz_*.c)
list(TRANSFORM sources REPLACE "\\.c$" "" OUTPUT_VARIABLE fuzzers)
foreach(fuzzer IN LISTS fuzzers)
    set(asan_${fuzzer}_arguments ${fuzz_arguments})
endforeach()
set(asan_check_ladder_arguments 1000 200) # seed and count: the random cases only, the listed ones take minutes
set(tiles_check_ladder_arguments 1000 200)

set(checked -DCMAKE_BUILD_TYPE=RelWithDebInfo)
attn_variant(clang clang-14 0.5 "${programs}" -DCMAKE_BUILD_TYPE=Release)
attn_variant(asan clang-14 0.2 "${programs};${fuzzers}" ${checked} -DATTN_SANITIZE=address)
attn_variant(poolless gcc 0.2 "check_pool;check_threads;check_context"
    -DCMAKE_BUILD_TYPE=Debug -DATTN_WITH_PTHREADPOOL=OFF -DATTN_WITH_PTHREADS=OFF -DATTN_BUILD_CLI=OFF)
attn_variant(pthreads gcc 0.2 "check_pool;check_threads;check_context;check_bits;check_inject"
    -DCMAKE_BUILD_TYPE=Release -DATTN_WITH_PTHREADPOOL=OFF -DATTN_BUILD_CLI=OFF)
attn_variant(tsan clang-14 0.2 "check_pool;check_threads" ${checked} -DATTN_SANITIZE=thread -DATTN_BUILD_CLI=OFF)
attn_variant(pthreads_tsan clang-14 0.2 "check_pool;check_threads"
    ${checked} -DATTN_SANITIZE=thread -DATTN_WITH_PTHREADPOOL=OFF -DATTN_BUILD_CLI=OFF)

# The ISA amx in plain C, on every machine: its logic, not its instructions. Slow, so few cases.
attn_variant(tiles gcc 0.05 "check_ladder;check_laws;check_bits;check_guard;check_range;check_visible"
    -DCMAKE_BUILD_TYPE=Release -DATTN_EMULATE_TILES=ON -DATTN_BUILD_CLI=OFF)
if(ATTN_BUILD_CLI)
    attn_check_python(tiles.onnx tiles 300 ${PROJECT_BINARY_DIR}/tiles "${PROJECT_BINARY_DIR}/tiles/checks/with_isa;amx"
        conformance/test_onnx.py)
    set_tests_properties(tiles.onnx PROPERTIES FIXTURES_REQUIRED tiles)
endif()

# Bad files and bad usage are where a command reads out of bounds; what computes for long is left out.
if(ATTN_BUILD_CLI)
    attn_check_python(asan.cli asan 1200 ${PROJECT_BINARY_DIR}/asan "" cli --ignore=cli/test_reports.py -k "not samples_what_is_large")
    set_tests_properties(asan.cli PROPERTIES FIXTURES_REQUIRED asan)
endif()

# valgrind 3.19 knows no AVX-512.
foreach(program IN ITEMS check_status check_guard check_laws)
    if(TARGET ${program})
        attn_check(valgrind.${program} valgrind 600 valgrind --quiet --error-exitcode=1 --leak-check=full --errors-for-leak-kinds=definite
            $<TARGET_FILE:${program}>)
        set_tests_properties(valgrind.${program} PROPERTIES ENVIRONMENT "ATTN_ISA=avx2;ATTN_CHECK_SCALE=0.05")
    endif()
endforeach()
