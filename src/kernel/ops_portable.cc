#include "kernel/lanes_portable.h"
#include "kernel/ops_rows.h"

namespace reprise {

const OpsTable kOpsPortable = OpsRows<LanesPortable>::Table();

}  // namespace reprise
