# Every folder of src/ is one static library, `reprise_<folder>`, made of its sources by stem:
#   slot_pool.cc        the library
#   slot_pool_avx2.cc   the library, compiled for that instruction set and called only where it exists
#   slot_pool_test.cc   <folder>_test, one GoogleTest binary per folder
#   slot_pool_bench.cc  <folder>_slot_pool_bench
#   slot_pool_fuzz.cc   <folder>_slot_pool_fuzz, with REPRISE_FUZZ

# -ffp-contract=off: a fused multiply-add happens where the code says so, and nowhere else (DESIGN 9).
add_library(reprise_options INTERFACE)
target_compile_options(reprise_options INTERFACE -Wall -Wextra -Werror -Wno-missing-field-initializers -ffp-contract=off)
target_include_directories(reprise_options INTERFACE ${PROJECT_SOURCE_DIR}/src)
if(REPRISE_SANITIZE)
  target_compile_options(reprise_options INTERFACE -fsanitize=${REPRISE_SANITIZE}
                         -fno-sanitize-recover=all -fno-omit-frame-pointer -g)
  target_link_options(reprise_options INTERFACE -fsanitize=${REPRISE_SANITIZE})
endif()
if(REPRISE_FUZZ)
  target_compile_options(reprise_options INTERFACE -fsanitize=fuzzer-no-link)
endif()
if(CMAKE_CXX_COMPILER_ID MATCHES Clang)
  # gcc's warnings are the ones that count; of clang's, the lock annotations.
  target_compile_options(reprise_options INTERFACE -Wno-error -Wthread-safety -Werror=thread-safety)
endif()

# What ./test builds where it does not need everything.
add_custom_target(unit_tests)
add_custom_target(fuzzers)

set(REPRISE_AVX2_FLAGS -mavx2 -mfma -mf16c -mbmi2)
set(REPRISE_AVX512_FLAGS ${REPRISE_AVX2_FLAGS} -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni
    -Wno-uninitialized -Wno-maybe-uninitialized)  # gcc 12's own avx512fintrin.h sets them off (bug 105593)

# reprise_folder(<folder> [DEPS <targets>...] [TEST_DEPS <targets>...])
function(reprise_folder folder)
  cmake_parse_arguments(ARG "" "" "DEPS;TEST_DEPS" ${ARGN})
  file(GLOB all CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cc)
  set(tests ${all})
  list(FILTER tests INCLUDE REGEX "_test\\.cc$")
  set(benches ${all})
  list(FILTER benches INCLUDE REGEX "_bench\\.cc$")
  set(fuzzers ${all})
  list(FILTER fuzzers INCLUDE REGEX "_fuzz\\.cc$")
  set(sources ${all})
  list(FILTER sources EXCLUDE REGEX "(_test|_bench|_fuzz|main)\\.cc$")

  if(sources)
    add_library(reprise_${folder} STATIC ${sources})
    target_link_libraries(reprise_${folder} PUBLIC reprise_options ${ARG_DEPS})
  else()  # headers only
    add_library(reprise_${folder} INTERFACE)
    target_link_libraries(reprise_${folder} INTERFACE reprise_options ${ARG_DEPS})
  endif()
  foreach(source ${sources})
    if(source MATCHES "_avx512\\.cc$")
      set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "${REPRISE_AVX512_FLAGS}")
    elseif(source MATCHES "_avx2\\.cc$")
      set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "${REPRISE_AVX2_FLAGS}")
    endif()
  endforeach()

  if(REPRISE_TESTS AND tests)
    add_executable(${folder}_test ${tests})
    target_include_directories(${folder}_test PRIVATE ${PROJECT_SOURCE_DIR})  # tests/*.h
    target_link_libraries(${folder}_test PRIVATE reprise_${folder} ${ARG_TEST_DEPS} GTest::gmock GTest::gtest_main)
    gtest_discover_tests(${folder}_test TEST_PREFIX "${folder}." DISCOVERY_MODE PRE_TEST
                         PROPERTIES LABELS unit TIMEOUT 300)
    add_dependencies(unit_tests ${folder}_test)
  endif()
  if(REPRISE_TESTS)
    foreach(bench ${benches})
      get_filename_component(stem ${bench} NAME_WE)
      add_executable(${folder}_${stem} ${bench})
      target_link_libraries(${folder}_${stem} PRIVATE reprise_${folder} ${ARG_TEST_DEPS} benchmark::benchmark)
    endforeach()
  endif()
  if(REPRISE_FUZZ)
    foreach(fuzz ${fuzzers})
      get_filename_component(stem ${fuzz} NAME_WE)
      add_executable(${folder}_${stem} ${fuzz})
      target_include_directories(${folder}_${stem} PRIVATE ${PROJECT_SOURCE_DIR})  # tests/*.h
      target_link_libraries(${folder}_${stem} PRIVATE reprise_${folder} ${ARG_TEST_DEPS})
      target_link_options(${folder}_${stem} PRIVATE -fsanitize=fuzzer)
      add_dependencies(fuzzers ${folder}_${stem})
    endforeach()
  endif()
endfunction()
