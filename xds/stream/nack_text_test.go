package stream

import (
	"strings"
	"testing"
	"unicode"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
)

// Error messages are shown on terminals, so they are sanitized. Names are searched in the
// original text, line by line.
func TestNackTextIsSanitized(t *testing.T) {
	t.Parallel()
	s := NewServer(ServerConfig{})
	s.SetGeneration(gen(1, "c/a=1", "c/b=1", "c/c=1"))
	if err := s.Request(start, &discovery.DeltaDiscoveryRequest{TypeUrl: string(ClusterType)}); err != nil {
		t.Fatal(err)
	}
	sent := s.Next(start).Message()
	if err := s.Request(start, &discovery.DeltaDiscoveryRequest{
		TypeUrl: string(ClusterType), ResponseNonce: sent.GetNonce(), ErrorDetail: &rpcstatus.Status{
			Code: 13, Message: "Error adding/updating cluster(s) a: \x1b[2J\r\nc: \u009b0m\u202e " + strings.Repeat("\n", maxReason),
		},
	}); err != nil {
		t.Fatal(err)
	}
	var names, texts []string
	for _, e := range s.Events() {
		texts = append(texts, e.Reason)
		if e.Kind == EventRejected {
			names = append(names, e.Name)
		}
	}
	for _, st := range s.Status() {
		texts = append(texts, st.LastError)
		for _, r := range st.Rejected {
			texts = append(texts, r.Reason)
		}
	}
	for _, r := range s.Sent(ClusterType) {
		texts = append(texts, r.Rejected)
	}
	if got := strings.Join(names, " "); got != "a c" {
		t.Errorf("rejected %q", got)
	}
	for _, w := range texts {
		if len(w) > maxReason || strings.ContainsFunc(w, func(r rune) bool { return !unicode.IsPrint(r) }) {
			t.Errorf("not sanitized: %q", w)
		}
	}
}

// TestEachRejectionHasItsOwnReason: a message about several resources gives each its own part.
func TestEachRejectionHasItsOwnReason(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"lines":  "Error adding/updating listener(s) a: cannot bind 'x'\nb: unable to open file 'y'\n",
		"commas": "Error adding/updating listener(s) a: cannot bind 'x', b: unable to open file 'y'",
	} {
		s := NewServer(ServerConfig{})
		s.SetGeneration(gen(1, "l/a=1", "l/b=1"))
		p := listenerPeer{t, s}
		p.request(start, &discovery.DeltaDiscoveryRequest{ResourceNamesSubscribe: []string{"*"}})
		sent := s.Next(start).Message()
		p.request(start, &discovery.DeltaDiscoveryRequest{ResponseNonce: sent.GetNonce(), ErrorDetail: &rpcstatus.Status{Code: 13, Message: text}})
		got := s.Status()[0].Rejected
		if len(got) != 2 || got[0].Reason != "a: cannot bind 'x'" || got[1].Reason != "b: unable to open file 'y'" {
			t.Errorf("%s: %+v", name, got)
		}
	}
}
