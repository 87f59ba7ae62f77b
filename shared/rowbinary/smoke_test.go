package rowbinary

import ("testing";"os";"strings";"fmt";"oncehouse/shared/kafka")
func TestSmoke(t *testing.T){
 b,_:=os.ReadFile("/work/shared/cases/values.tsv")
 for _,l:=range strings.Split(string(b),"\n"){ if l==""||l[0]=='#'{continue}
  f:=strings.Split(l,"\t"); typ,kind:=f[0],""
  if a,_,ok:=strings.Cut(typ," DEFAULT");ok{typ,kind=a,"DEFAULT"}
  cols:=[]Column{{"c",typ,kind}}
  if strings.HasPrefix(typ,"Nested"){cols=[]Column{{"c.a","Array(UInt8)",""},{"c.b","Array(String)",""}}}
  e,err:=Compile(cols,Options{}); if err!=nil{fmt.Println(l,err);continue}
  w:=e.NewWriter(); v:=`{"c":`+f[1]+`}`; if f[1]=="absent"{v="{}"}
  out,o,r:=w.Append(nil,"t",0,&kafka.Record{Value:[]byte(v)})
  if (o==Refused)!=(f[2]=="REFUSE"){fmt.Print("BAD ")}
  fmt.Println(f[0],f[1],"=>",f[2],"|",o,out,r)
 }
}
