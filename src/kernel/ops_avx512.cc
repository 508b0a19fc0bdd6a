#include "kernel/lanes_avx512.h"
#include "kernel/ops_rows.h"

namespace reprise {

const OpsTable kOpsAvx512 = OpsRows<LanesAvx512>::Table();

}  // namespace reprise
