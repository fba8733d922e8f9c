package stream

import (
	"bytes"
	"fmt"
	"testing"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
)

// Resources of an arena are the same as without one, and are sent in few buffers, also
// with gaps between them or mixed with others.
func TestArena(t *testing.T) {
	t.Parallel()
	var a Arena
	var list, alone []*Resource
	for i := range 200 {
		r := Resource{Name: fmt.Sprintf("r%03d", i), Version: "1", Body: bytes.Repeat([]byte{byte(i)}, 10*i)}
		alone = append(alone, NewResource(ClusterType, r))
		list = append(list, a.NewResource(ClusterType, r))
	}
	for name, c := range map[string]struct {
		list []*Resource
		want []*Resource
		most int
	}{
		"all":      {list, alone, 1 + 200*1200/arenaChunk + 2},
		"gaps":     {[]*Resource{list[0], list[2], list[3]}, []*Resource{alone[0], alone[2], alone[3]}, 3},
		"backward": {[]*Resource{list[3], list[2]}, []*Resource{alone[3], alone[2]}, 3},
		"mixed":    {[]*Resource{list[0], alone[1], list[2]}, alone[:3], 4},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := &Response{TypeURL: ClusterType, Nonce: "1", Resources: c.list}
			buffers := r.AppendBuffers(nil)
			if len(buffers) > c.most {
				t.Errorf("%d buffers, want at most %d", len(buffers), c.most)
			}
			got := &discovery.DeltaDiscoveryResponse{}
			if err := proto.Unmarshal(bytes.Join(buffers, nil), got); err != nil {
				t.Fatal(err)
			}
			want := (&Response{TypeURL: ClusterType, Nonce: "1", Resources: c.want}).Message()
			if d := cmp.Diff(want, got, protocmp.Transform()); d != "" {
				t.Error(d)
			}
		})
	}
}
