from try5 import *
from topas.policies import JointPolicy
prof=load_profile("study"); K=RP.K
o=WorkloadOptions(prefix_tokens=12000)
tr=generate("chain-3",rate_per_s=1000,tasks=3,seed=1,options=o)
import os
done=[]
def dec(e):
    if len(e.tasks)==3 and not done:
        done.append(1)
        p,st,ids,out,ag=RP.build(e,1,RP.DEFAULT); s=RP.scratch(p)
        print(p, st, ids, out)
        roll=K.roll.py_func if os.environ.get("PY") else K.roll
        print(roll(K.P8,0,st,s.taken,0,p,s,out[0],10000,1.0)); print(s)
    return RP.decide_with(e,RP.DEFAULT|dict(bases=(0,),rules=(),caps=(),preempt=0,margin=9))
simulate(tr,JointPolicy("x",dec),prof)
