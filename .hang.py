import faulthandler, sys, resource
resource.setrlimit(resource.RLIMIT_AS, (3<<30, 3<<30))
faulthandler.dump_traceback_later(60, exit=True)
from tests.fuzz.program import *
from tests.fuzz.runner import check
print(check(generate(int(sys.argv[1]), Options("any"))))
