from dbg2 import *
