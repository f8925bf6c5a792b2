from try5 import *
from topas.policies import JointPolicy
prof=load_profile("study"); K=RP.K
for wl,n in (("chain-3",12),("dag-4",8),("dag-10-wide",6)):
    o=WorkloadOptions(prefix_tokens=12000)
    tr=generate(wl,rate_per_s=1000,tasks=n,seed=1,options=o)
    for nm,b in (("lpm",K.LPM),("spf",K.SPF),("p8",K.P8),("p12",K.P12),("parrot",K.PARROT)):
        pred=[]
        def dec(e):
            if len(e.tasks)==n and not pred:
                opts=RP.DEFAULT|dict(tail=0.0)
                p,st,ids,out,ag=RP.build(e,1,opts); s=RP.scratch(p)
                pred.append(K.roll(b,0,st,s.taken,0,p,s,out[0],10000,1.0))
                pred.append(e.time_s)
            return RP.decide_with(e,RP.DEFAULT|dict(bases=(b,),rules=(),caps=(),preempt=0,margin=9))
        m=simulate(tr,JointPolicy("x",dec),prof).metrics
        print(wl,nm,"true",round(m["mean_jct_s"],2),"pred",[round(x,2) for x in pred])
