#include "kernel/lanes_avx2.h"
#include "kernel/ops_rows.h"

namespace reprise {

const OpsTable kOpsAvx2 = OpsRows<LanesAvx2>::Table();

}  // namespace reprise
