# The CUDA plugin libattn_cuda.so, where nvcc is found: ATTN_NVCC, build/cuda of this repository (scripts/setup.sh check), the PATH,
# /usr/local/cuda. nvcc is called directly: neither a GPU nor a driver has to be there.
file(GLOB attn_nvcc_of_setup ${PROJECT_SOURCE_DIR}/build/cuda/nvidia/cu*/bin)
find_program(ATTN_NVCC nvcc HINTS ${attn_nvcc_of_setup} /usr/local/cuda/bin DOC "NVIDIA's compiler, 12.3 or later")
if(NOT ATTN_NVCC)
    if(NOT ATTN_WITH_CUDA STREQUAL "AUTO")
        message(FATAL_ERROR "ATTN_WITH_CUDA is ${ATTN_WITH_CUDA} but nvcc is not found (ATTN_NVCC)")
    endif()
    return()
endif()

set(attn_cuda_flags -std=c++17 -O3 -Xcompiler -fPIC,-fvisibility=hidden,-fno-exceptions,-fno-threadsafe-statics,-Wall,-Wextra -Werror all-warnings
    -I${PROJECT_SOURCE_DIR}/include -ccbin ${CMAKE_C_COMPILER})
set(attn_cuda_hopper -gencode=arch=compute_90a,code=sm_90a)
set(attn_cuda_any -gencode=arch=compute_80,code=[sm_80,compute_80] ${attn_cuda_hopper})
set(attn_cuda_objects "")
file(GLOB attn_cuda_headers CONFIGURE_DEPENDS src/cuda/*.h src/cuda/*.cuh src/*.h)
foreach(name IN ITEMS general measure plan plugin driver maps decode prefill)
    set(machines ${attn_cuda_any})
    if(name MATCHES "^(decode|prefill)$") # its instructions are Hopper's
        set(machines ${attn_cuda_hopper})
    endif()
    set(object ${CMAKE_CURRENT_BINARY_DIR}/cuda/${name}.o)
    add_custom_command(OUTPUT ${object}
        COMMAND ${CMAKE_COMMAND} -E make_directory ${CMAKE_CURRENT_BINARY_DIR}/cuda
        COMMAND ${ATTN_NVCC} ${attn_cuda_flags} ${machines} -c ${PROJECT_SOURCE_DIR}/src/cuda/${name}.cu -o ${object}
        DEPENDS src/cuda/${name}.cu ${attn_cuda_headers} include/attn/attn.h
        COMMENT "Building CUDA object ${name}.o" VERBATIM)
    list(APPEND attn_cuda_objects ${object})
endforeach()

# What it shares with the library: the rules of a problem. Names stay its own.
get_filename_component(attn_cuda_root ${ATTN_NVCC} DIRECTORY)
find_library(ATTN_CUDART cudart_static HINTS ${attn_cuda_root}/../lib ${attn_cuda_root}/../lib64 ${attn_cuda_root}/../targets/x86_64-linux/lib
    REQUIRED)
add_library(attn_cuda MODULE ${attn_cuda_objects} src/problem.c src/overlap.c src/convert.c)
set_target_properties(attn_cuda PROPERTIES PREFIX "lib" OUTPUT_NAME attn_cuda C_VISIBILITY_PRESET hidden LINKER_LANGUAGE C)
target_include_directories(attn_cuda PRIVATE include src)
target_link_libraries(attn_cuda PRIVATE attn_flags ${ATTN_CUDART} ${CMAKE_DL_LIBS} pthread rt)
file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/cuda/exports "{ global: attn_plugin; local: *; };\n")
target_link_options(attn_cuda PRIVATE -Wl,--version-script=${CMAKE_CURRENT_BINARY_DIR}/cuda/exports -Wl,-z,defs)
