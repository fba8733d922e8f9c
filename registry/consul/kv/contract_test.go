package kv

import (
	"fmt"
	"log/slog"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/fairlead/fairlead/internal/consultest"
	"github.com/fairlead/fairlead/registry"
	"github.com/fairlead/fairlead/registry/consul/client"
	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/registry/sourcetest"
)

// TestSource holds keys to the contract of all sources.
func TestSource(t *testing.T) {
	t.Parallel()
	a := consultest.Start(t, consultest.Options{})
	var places atomic.Uint64
	sourcetest.Run(t, func(tb testing.TB) *sourcetest.Place {
		tb.Helper()
		prefix := fmt.Sprintf("place/%d", places.Add(1))
		network := consultest.NewProxy(tb, net.JoinHostPort("127.0.0.1", "0"), a.HostPort())
		return &sourcetest.Place{
			New: func(tb testing.TB) registry.Source {
				tb.Helper()
				s, err := New(Config{
					Logger: slog.New(slog.DiscardHandler), Client: client.Config{Address: network.HostPort()}, Prefix: prefix,
					StateDir: tb.TempDir(), RereadEvery: 600 * time.Millisecond,
				})
				if err != nil {
					tb.Fatal(err)
				}
				return s
			},
			Put: func(tb testing.TB, objects map[string]string) {
				tb.Helper()
				putWorkloads(tb, a.Client(), prefix, objects)
			},
			Read: func(f *mesh.Fragment) map[string]string {
				out := map[string]string{}
				for _, w := range f.Workloads {
					out[w.Name] = w.Labels["content"]
				}
				return out
			},
			Away: func(testing.TB) { network.Cut() }, Back: func(testing.TB) { network.Heal() },
			Again: time.Second, Within: patience,
		}
	})
}

// putWorkloads makes the manifests below a prefix exactly those, one a key, in one
// transaction.
func putWorkloads(tb testing.TB, c *api.Client, prefix string, objects map[string]string) {
	tb.Helper()
	have, _, err := c.KV().List(prefix+"/", nil)
	if err != nil {
		tb.Fatal(err)
	}
	was := map[string]string{}
	var ops api.TxnOps
	for _, kv := range have {
		was[kv.Key] = string(kv.Value)
	}
	for name, content := range objects {
		key := prefix + "/" + name + ".yaml"
		text := fmt.Sprintf("apiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata:\n  name: %s\n  namespace: default\n"+
			"  labels:\n    content: %q\nspec:\n  address: 10.0.0.1\n", name, content)
		if was[key] != text {
			ops = append(ops, &api.TxnOp{KV: &api.KVTxnOp{Verb: api.KVSet, Key: key, Value: []byte(text)}})
		}
		delete(was, key)
	}
	for key := range was {
		ops = append(ops, &api.TxnOp{KV: &api.KVTxnOp{Verb: api.KVDelete, Key: key}})
	}
	if len(ops) == 0 {
		return
	}
	if done, answer, _, err := c.Txn().Txn(ops, nil); err != nil || !done {
		tb.Fatal(answer, err)
	}
}
