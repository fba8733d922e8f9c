package dns

import (
	"net/netip"
	"testing"
)

// TestAnswersItself: a server that serves answers at each address, one that does not listen says so.
// Nothing of it is counted, and nobody else is asked.
func TestAnswersItself(t *testing.T) {
	t.Parallel()
	s, _ := start(t, shop(t))
	for range 3 {
		if err := s.Answers(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if st := s.Status(); st.Queries != 0 || st.Mesh+st.Forwarded+st.Refused+st.Failed != 0 {
		t.Errorf("%+v", st)
	}
	idle, err := New(Config{Logger: quiet(), Table: shop(t)})
	if err != nil {
		t.Fatal(err)
	}
	if err := idle.Answers(t.Context()); err == nil {
		t.Error("it does not listen, and answers")
	}
}

// TestCapturePort: the kernel redirects queries to 127.0.0.1 and ::1.
func TestCapturePort(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		at   []string
		want uint16
	}{
		{nil, DefaultPort},
		{[]string{"127.0.0.1:15054", "[::1]:15054"}, 15054},
		{[]string{"127.0.0.2:15053", "127.0.0.1:15054", "[::1]:15055", "[::1]:15054"}, 15054},
		{[]string{"127.0.0.1:15054"}, 0},
		{[]string{"[::1]:15054"}, 0},
		{[]string{"127.0.0.1:15053", "[::1]:15054"}, 0},
		{[]string{"127.0.0.2:15053", "[::1]:15053"}, 0},
	} {
		var at []netip.AddrPort
		for _, a := range c.at {
			at = append(at, netip.MustParseAddrPort(a))
		}
		s, err := New(Config{Logger: quiet(), Table: &Table{}, Addresses: at})
		if err != nil {
			t.Fatal(err)
		}
		if got, err := s.CapturePort(); got != c.want || (err == nil) != (c.want != 0) {
			t.Errorf("%q: %d %v, want %d", c.at, got, err, c.want)
		}
	}
}
