#include "base/os.h"
