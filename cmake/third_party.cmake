# What the distribution packages, and llama.cpp as built by tools/third_party into a cache outside
# the clone. Third-party warnings are not ours: their headers are system headers.
find_package(Threads REQUIRED)
find_package(OpenSSL REQUIRED COMPONENTS Crypto)
find_package(absl REQUIRED)
find_package(zstd REQUIRED)
if(REPRISE_KV_ONLY)
  return()
endif()
find_package(nlohmann_json REQUIRED)
find_package(CLI11 REQUIRED)
find_package(spdlog REQUIRED)
find_package(Boost 1.81 REQUIRED)
if(REPRISE_TESTS)
  find_package(GTest REQUIRED)
  find_package(benchmark REQUIRED)
  include(GoogleTest)
endif()

if(DEFINED ENV{REPRISE_CACHE})
  set(reprise_cache_default $ENV{REPRISE_CACHE})
else()
  set(reprise_cache_default $ENV{HOME}/.cache/reprise)
endif()
set(REPRISE_LLAMA_DIR ${reprise_cache_default}/third_party/llama.cpp-0.3.36
    CACHE PATH "llama.cpp as laid down by tools/third_party: src/ and product/")
if(NOT EXISTS ${REPRISE_LLAMA_DIR}/product/src/libllama.a)
  message(FATAL_ERROR "llama.cpp is not built in ${REPRISE_LLAMA_DIR}; run tools/third_party (./run --build does)")
endif()

function(reprise_import name library)
  add_library(${name} STATIC IMPORTED)
  set_target_properties(${name} PROPERTIES IMPORTED_LOCATION ${REPRISE_LLAMA_DIR}/product/${library})
endfunction()
reprise_import(llama_ggml_base ggml/src/libggml-base.a)
reprise_import(llama_ggml_cpu ggml/src/libggml-cpu.a)
reprise_import(llama_ggml ggml/src/libggml.a)
reprise_import(llama_llama src/libllama.a)
reprise_import(llama_common common/libllama-common.a)
reprise_import(llama_common_base common/libllama-common-base.a)
reprise_import(llama_httplib vendor/cpp-httplib/libcpp-httplib.a)

# ggml: GGUF, and dot products for weight formats without a kernel of ours.
add_library(third_party_ggml INTERFACE)
target_include_directories(third_party_ggml SYSTEM INTERFACE ${REPRISE_LLAMA_DIR}/src/ggml/include)
target_link_libraries(third_party_ggml INTERFACE llama_ggml llama_ggml_cpu llama_ggml_base Threads::Threads
                      ${CMAKE_DL_LIBS} m)
# The libraries below refer to each other in both directions.
set_property(TARGET llama_ggml APPEND PROPERTY INTERFACE_LINK_LIBRARIES llama_ggml_cpu llama_ggml_base)
set_property(TARGET llama_ggml_cpu APPEND PROPERTY INTERFACE_LINK_LIBRARIES llama_ggml_base)

set_property(TARGET llama_llama APPEND PROPERTY INTERFACE_LINK_LIBRARIES llama_ggml llama_ggml_cpu llama_ggml_base)
set_property(TARGET llama_common APPEND PROPERTY INTERFACE_LINK_LIBRARIES llama_llama llama_common_base llama_httplib)

# libllama and its common library: tokenizers, chat templates, samplers, grammars; the oracle in tests.
add_library(third_party_llama INTERFACE)
target_include_directories(third_party_llama SYSTEM INTERFACE ${REPRISE_LLAMA_DIR}/src/include
                           ${REPRISE_LLAMA_DIR}/src/common ${REPRISE_LLAMA_DIR}/src/vendor)
target_link_libraries(third_party_llama INTERFACE llama_common llama_common_base llama_httplib llama_llama
                      third_party_ggml)
