package profile_test

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/pki/profile"
)

// TestWorkloadName: a name that fits is in the subject, one below the other, and no other name is.
func TestWorkloadName(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	long := strings.Repeat("x", 64)
	for name, c := range map[string]struct {
		in      profile.WorkloadName
		subject string
	}{
		"whole":           {profile.WorkloadName{Name: "orders-v1", Service: "orders", Revision: "v1"}, "OU=orders-v1,OU=v1,OU=orders,O=Fairlead"},
		"all_letters":     {profile.WorkloadName{Name: "A_z.0-9", Service: "a", Revision: "latest"}, "OU=A_z.0-9,OU=latest,OU=a,O=Fairlead"},
		"longest":         {profile.WorkloadName{Name: long, Service: long, Revision: long}, "OU=" + long + ",OU=" + long + ",OU=" + long + ",O=Fairlead"},
		"too_long":        {profile.WorkloadName{Name: long + "x", Service: "a", Revision: "b"}, "O=Fairlead"},
		"nobody":          {profile.WorkloadName{}, "O=Fairlead"},
		"a_part":          {profile.WorkloadName{Name: "orders"}, "O=Fairlead"},
		"a_comma":         {profile.WorkloadName{Name: "orders,CN=x", Service: "a", Revision: "b"}, "O=Fairlead"},
		"a_blank":         {profile.WorkloadName{Name: "or ders", Service: "a", Revision: "b"}, "O=Fairlead"},
		"a_line":          {profile.WorkloadName{Name: "orders\n", Service: "a", Revision: "b"}, "O=Fairlead"},
		"a_foreign_sign":  {profile.WorkloadName{Name: "ördérs", Service: "a", Revision: "b"}, "O=Fairlead"},
		"service_unknown": {profile.WorkloadName{Name: "orders", Revision: "b"}, "O=Fairlead"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			key := newKey(t)
			l := leaf(t, key.Public())
			pair := profile.Pair{Namespace: "shop", ServiceAccount: "orders"}
			id, err := profile.WorkloadID(td(), pair)
			if err != nil {
				t.Fatal(err)
			}
			l.Subject = profile.Subject{Kind: profile.Impersonated, ID: id, Pair: pair, Binding: profile.Binding{7}}
			l.Workload = c.in
			template, err := l.Template(time.Now())
			if err != nil {
				t.Fatal(err)
			}
			cert := sign(t, template, a.cert, key.Public(), a.key)
			if got := rfc2253(t, cert); got != c.subject {
				t.Errorf("subject %q, want %q", got, c.subject)
			}
			want := c.in
			if c.subject == "O=Fairlead" {
				want = profile.WorkloadName{}
			}
			if got := profile.WorkloadNameOf(cert); got != want {
				t.Errorf("read back as %+v", got)
			}
			got, err := profile.Verification{Bundle: []*x509.Certificate{a.cert}, TrustDomain: td(), Now: time.Now()}.Verify([]*x509.Certificate{cert})
			if err != nil || got != l.Subject {
				t.Errorf("%+v, %v: want %+v", got, err, l.Subject)
			}
		})
	}
	l := leaf(t, newKey(t).Public())
	l.Workload = profile.WorkloadName{Name: "orders", Service: "orders", Revision: "v1"}
	if _, err := l.Template(time.Now()); err == nil {
		t.Error("a host's certificate has the name of a workload")
	}
}

// rfc2253 is the subject as it is written in the certificate, the last part first.
func rfc2253(t *testing.T, cert *x509.Certificate) string {
	t.Helper()
	var rdns pkix.RDNSequence
	if rest, err := asn1.Unmarshal(cert.RawSubject, &rdns); err != nil || len(rest) > 0 {
		t.Fatal(err)
	}
	return rdns.String()
}
