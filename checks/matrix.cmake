# The same programs by other compilers, under sanitizers and under valgrind. Each variant is a build folder of its own below this one, made
# by a test that the variant's other tests wait for.

# attn_variant(NAME COMPILER PROGRAMS OPTION...)
function(attn_variant name compiler programs)
    set(folder ${PROJECT_BINARY_DIR}/${name})
    attn_check(${name}.build ${name} 300 ${PROJECT_SOURCE_DIR}/scripts/build.sh ${folder} -DCMAKE_C_COMPILER=${compiler}
        -DATTN_WERROR=ON -DATTN_BUILD_CHECKS=ON -DATTN_CHECK_MATRIX=OFF ${ARGN})
    # The build has two compilers at once, so it counts as two tests.
    set_tests_properties(${name}.build PROPERTIES FIXTURES_SETUP ${name} PROCESSORS 2)
    foreach(program IN LISTS programs)
        if(EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/${program}.c)
            attn_check(${name}.${program} ${name} 600 ${folder}/checks/${program} ${${program}_arguments})
            set_tests_properties(${name}.${program} PROPERTIES FIXTURES_REQUIRED ${name} ENVIRONMENT "${attn_sanitizer_environment}")
        endif()
    endforeach()
endfunction()

file(GLOB sources CONFIGURE_DEPENDS RELATIVE ${CMAKE_CURRENT_SOURCE_DIR} fuzz_*.c)
list(TRANSFORM sources REPLACE "\\.c$" "" OUTPUT_VARIABLE fuzzers)
foreach(fuzzer IN LISTS fuzzers)
    set(${fuzzer}_arguments -seed=1 -max_total_time=20 -max_len=1024)
endforeach()

attn_variant(clang clang-14 "${programs}" -DCMAKE_BUILD_TYPE=Release)
attn_variant(asan clang-14 "${programs};${fuzzers}" -DCMAKE_BUILD_TYPE=RelWithDebInfo -DATTN_SANITIZE=address)
attn_variant(tsan clang-14 "check_pool;check_threads" -DCMAKE_BUILD_TYPE=RelWithDebInfo -DATTN_SANITIZE=thread -DATTN_BUILD_CLI=OFF)

# valgrind 3.19 knows no AVX-512.
foreach(program IN ITEMS check_misc)
    if(TARGET ${program})
        attn_check(valgrind.${program} valgrind 600 valgrind --quiet --error-exitcode=1 --leak-check=full --errors-for-leak-kinds=definite
            $<TARGET_FILE:${program}>)
        set_tests_properties(valgrind.${program} PROPERTIES ENVIRONMENT ATTN_ISA=avx2)
    endif()
endforeach()
