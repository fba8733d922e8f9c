package stream

import (
	"errors"
	"maps"
	"slices"
	"testing"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
)

// link exchanges messages between a client and a server until nothing is left to send, and
// returns what the client received.
func link(t *testing.T, c *Client, s *Server) []*Update {
	t.Helper()
	var got []*Update
	for {
		if req := c.Next(); req != nil {
			must(t, s.Request(start, req))
			continue
		}
		resp := s.Next(start).Message()
		if resp == nil {
			return got
		}
		u, err := c.Response(resp)
		must(t, err)
		got = append(got, u)
	}
}

func TestClientAcceptsOnlyWhenDone(t *testing.T) {
	t.Parallel()
	c := NewClient(ClientConfig{Wants: map[TypeURL]Want{ClusterType: {All: true}, EndpointType: {Names: []string{"a"}}}})
	s := NewServer(ServerConfig{})
	s.SetGeneration(gen(1, "c/a=1", "e/a=1", "e/other=1"))
	c.Open()
	got := link(t, c, s)
	if len(got) != 2 || got[0].Type != ClusterType || got[1].Changed[0].Name != "a" {
		t.Fatalf("got %+v", got)
	}
	if st := s.Status()[0]; st.AckedGeneration != 0 || !st.Pending {
		t.Errorf("the server got an answer before Done: %+v", st)
	}
	for _, u := range got {
		u.Done(nil)
		u.Done(errors.New("too late"))
	}
	link(t, c, s)
	if st := s.Status()[0]; st.AckedGeneration != 1 || st.Pending {
		t.Errorf("not ACKed: %+v", st)
	}
	if v := c.Accepted(ClusterType); !maps.Equal(v, map[string]string{"a": "1"}) {
		t.Errorf("accepted %v", v)
	}

	// A new stream, to a server that knows nothing: nothing travels.
	s = NewServer(ServerConfig{})
	s.SetGeneration(gen(5, "c/a=1", "e/a=1"))
	c.Open()
	for _, u := range link(t, c, s) {
		if len(u.Changed)+len(u.Removed) > 0 {
			t.Errorf("sent again: %+v", u)
		}
		u.Done(nil)
	}
	link(t, c, s)
	// What goes is forgotten only when Done.
	s.SetGeneration(gen(6, "e/a=1"))
	got = link(t, c, s)
	if len(got) != 1 || !slices.Equal(got[0].Removed, []string{"a"}) || len(c.Accepted(ClusterType)) != 1 {
		t.Fatalf("got %+v, accepted %v", got, c.Accepted(ClusterType))
	}
	got[0].Done(nil)
	if len(c.Accepted(ClusterType)) != 0 {
		t.Error("a removal was not accepted")
	}
}

func TestClientNackListsRejectedResources(t *testing.T) {
	t.Parallel()
	c := NewClient(ClientConfig{Wants: map[TypeURL]Want{ClusterType: {All: true}}})
	s := NewServer(ServerConfig{})
	s.SetGeneration(gen(1, "c/a=1", "c/b=1", "c/c=1"))
	c.Open()
	got := link(t, c, s)
	got[0].Done(&RejectError{Rejected: []RejectedResource{{"b", "no such filter"}}})
	if more := link(t, c, s); len(more) > 0 {
		t.Errorf("sent more: %+v", more)
	}
	if v := c.Accepted(ClusterType); !maps.Equal(v, map[string]string{"a": "1", "c": "1"}) {
		t.Errorf("accepted %v", v)
	}
	st := s.Status()[0]
	if st.Unknown != 0 || len(st.Rejected) != 1 || st.Rejected[0] != (Rejection{"b", "1", "no such filter"}) {
		t.Errorf("status %+v", st)
	}
	// A NACK without details: the server finds the rejected resource itself.
	s.SetGeneration(gen(2, "c/a=2", "c/b=1", "c/c=2"))
	got = link(t, c, s)
	for len(got) > 0 {
		var err error
		if slices.ContainsFunc(got[0].Changed, func(n *Resource) bool { return n.Name == "c" && n.Version == "2" }) {
			err = errors.New("no idea why")
		}
		got[0].Done(err)
		got = append(got[1:], link(t, c, s)...)
	}
	if v := c.Accepted(ClusterType); !maps.Equal(v, map[string]string{"a": "2", "c": "1"}) {
		t.Errorf("accepted %v", v)
	}
}

func TestClientKeepsVersionsAcrossStreams(t *testing.T) {
	t.Parallel()
	c := NewClient(ClientConfig{Wants: map[TypeURL]Want{ClusterType: {All: true}}})
	s := NewServer(ServerConfig{})
	s.SetGeneration(gen(1, "c/a=1"))
	c.Open()
	old := link(t, c, s)[0]
	c.Open()
	old.Done(nil)
	if req := c.Next(); req.GetResponseNonce() != "" || len(req.GetInitialResourceVersions()) != 1 {
		t.Errorf("first request of the stream: %v", req)
	}
	if req := c.Next(); req != nil {
		t.Errorf("an answer to the stream before: %v", req)
	}
}

func TestClientNewerUpdateWins(t *testing.T) {
	t.Parallel()
	c := NewClient(ClientConfig{Wants: map[TypeURL]Want{EndpointType: {Names: []string{"a"}}}})
	s := NewServer(ServerConfig{})
	s.SetGeneration(gen(1, "e/a=1"))
	c.Open()
	first := link(t, c, s)
	s.SetGeneration(gen(2, "e/a=2"))
	second := link(t, c, s)
	second[0].Done(nil)
	first[0].Done(nil)
	if v := c.Accepted(EndpointType)["a"]; v != "2" {
		t.Errorf("accepted %q", v)
	}
}

func TestClientSubscriptions(t *testing.T) {
	t.Parallel()
	c := NewClient(ClientConfig{})
	c.Open()
	if c.Next() != nil {
		t.Error("subscribes to nothing")
	}
	c.SubscribeAll(ListenerType)
	c.Subscribe(RouteType, "b", "a")
	first, second := c.Next(), c.Next()
	if first.GetTypeUrl() != string(ListenerType) || !slices.Equal(first.GetResourceNamesSubscribe(), []string{"*"}) ||
		!slices.Equal(second.GetResourceNamesSubscribe(), []string{"a", "b"}) {
		t.Errorf("%v, %v", first, second)
	}
	c.Subscribe(RouteType, "c")
	c.Unsubscribe(RouteType, "a", "never")
	req := c.Next()
	if !slices.Equal(req.GetResourceNamesSubscribe(), []string{"c"}) || !slices.Equal(req.GetResourceNamesUnsubscribe(), []string{"a"}) {
		t.Errorf("%v", req)
	}
	if w := c.Want(RouteType); !slices.Equal(w.Names, []string{"b", "c"}) || w.All {
		t.Errorf("wants %v", w)
	}
	for _, resp := range []*discovery.DeltaDiscoveryResponse{
		{TypeUrl: string(SecretType)},
		{TypeUrl: string(RouteType), Resources: []*discovery.Resource{{Name: "b"}}},
	} {
		if _, err := c.Response(resp); err == nil {
			t.Errorf("took %v", resp)
		}
	}
}

// A route configuration that is subscribed again starts without virtual hosts, even if an
// earlier update is answered late.
func TestClientForgetsHosts(t *testing.T) {
	t.Parallel()
	c := NewClient(ClientConfig{
		Wants: map[TypeURL]Want{RouteType: {Names: []string{"80", "8080"}}, VirtualHostType: {All: true}},
		Accepted: map[TypeURL]map[string]string{
			RouteType: {"80": "1", "8080": "1"}, VirtualHostType: {"80/a": "1", "8080/a": "1"},
		},
	})
	c.Open()
	for c.Next() != nil {
	}
	late, err := c.Response((&Response{TypeURL: VirtualHostType, Nonce: "1", Resources: []*Resource{
		NewResource(VirtualHostType, Resource{Name: "80/b", Version: "2"}),
	}}).Message())
	must(t, err)
	c.Unsubscribe(RouteType, "80")
	late.Done(nil)
	if v := c.Accepted(VirtualHostType); !maps.Equal(v, map[string]string{"8080/a": "1"}) {
		t.Errorf("accepted %v", v)
	}
	c.ForgetHosts("8080")
	if v := c.Accepted(VirtualHostType); len(v) != 0 {
		t.Errorf("accepted %v", v)
	}
}
