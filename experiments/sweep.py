import torch, transformers, warnings, re, os, glob
warnings.filterwarnings("ignore")
from rooftile import register_attention
from rooftile.ops.attention import huggingface
register_attention()
D=os.path.dirname(transformers.__file__)+"/models"
names=[f.split("/")[-2] for f in sorted(glob.glob(D+"/*/modeling_*.py")) if "sliding_window=" in open(f).read()]
import sys
if len(sys.argv)>1: names=sys.argv[1].split(",")
SM=dict(vocab_size=64,hidden_size=64,intermediate_size=32,num_hidden_layers=3,num_attention_heads=4,num_key_value_heads=2,head_dim=16,max_position_embeddings=64,sliding_window=4,use_sliding_window=True,max_window_layers=1,pad_token_id=0,bos_token_id=1,eos_token_id=2,num_experts=2,num_local_experts=2,num_experts_per_tok=1,moe_intermediate_size=16)
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as M
ok=bad=0
calls=[]
orig=huggingface.attention
huggingface.attention=lambda *a,**o:(calls.append(o.get("window")),orig(*a,**o))[1]
for n in names:
    for key in [k for k in M if k==n or k.startswith(n+"_text")]:
        try:
            cfg=AutoConfig.for_model(key,**SM)
            torch.manual_seed(0)
            net=AutoModelForCausalLM.from_config(cfg).eval()
        except Exception as e: print(key,"no model:",type(e).__name__,str(e)[:80]); continue
        if sum(p.numel() for p in net.parameters())>3e7: print(key,"too large"); continue
        for p in net.parameters():
            if p.ndim>1: torch.nn.init.normal_(p,std=0.1)
        tok=torch.randint(3,64,(2,11)); pad=torch.ones(2,11,dtype=torch.long); pad[0,:3]=0
        got={}
        try:
            for impl in ("eager","rooftile"):
                net.set_attn_implementation(impl)
                calls.clear(); out=[]
                with torch.no_grad():
                    out.append(net(tok).logits); nc=[c for c in calls]
                    out.append(net(tok,attention_mask=pad).logits[pad.bool()])
                    for cache in ("dynamic","static"):
                        for m in (torch.ones_like(tok),pad):
                            try:
                                g=net.generate(tok,attention_mask=m,max_new_tokens=7,do_sample=False,return_dict_in_generate=True,output_logits=True,eos_token_id=None,cache_implementation=cache,pad_token_id=0)
                                out.append(torch.stack(g.logits))
                            except Exception as e:
                                out.append(type(e).__name__)
                    # chunked prefill through a cache made by hand
                    try:
                        from transformers import DynamicCache
                        for c in (DynamicCache(),DynamicCache(config=cfg)):
                            a=net(tok[:,:6],past_key_values=c,use_cache=True); b=net(tok[:,6:9],past_key_values=c,use_cache=True); d=net(tok[:,9:10],past_key_values=c,use_cache=True)
                            out+= [a.logits,b.logits,d.logits]
                    except Exception as e: out.append(type(e).__name__+str(e)[:40])
                l=net(tok,labels=tok).loss
                ps=[p for p in net.parameters() if p.requires_grad][:8]
                out+= [g for g in torch.autograd.grad(l,ps,allow_unused=True) if g is not None]
                got[impl]=out
        except Exception as e:
            print(key,impl,"error:",type(e).__name__,str(e)[:150]); bad+=1; continue
        w=[]
        for i,(x,y) in enumerate(zip(got["rooftile"],got["eager"])):
            if isinstance(x,str) or isinstance(y,str):
                if x!=y if isinstance(x,str) and isinstance(y,str) else True: w.append((i,str(x)[:60],str(y)[:60]))
            elif x.shape!=y.shape or not torch.allclose(x,y,rtol=1e-3,atol=1e-4): w.append((i,float((x-y).abs().max()) if x.shape==y.shape else (x.shape,y.shape)))
        print(key,"told" if huggingface._tells(net.config) else "-",[c for c in nc],"WRONG "+str(w) if w else "ok",flush=True); ok+=not w; bad+=bool(w)
print(ok,bad)
