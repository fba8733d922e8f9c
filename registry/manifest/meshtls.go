package manifest

import (
	"fmt"
	"slices"
	"strings"

	meshconfig "istio.io/api/mesh/v1alpha1"

	"github.com/fairlead/fairlead/registry/mesh"
)

// ecdhCurves are the names that every Envoy from 1.36 on accepts. One that an Envoy does not know makes it
// refuse each listener or cluster that has it: Istio warns of curves, and looks at no cipher suite.
//
//nolint:gochecknoglobals // a read-only table
var ecdhCurves = []string{"P-256", "P-384", "P-521", "X25519", "X25519MLKEM768"}

// TLSNames are the cipher suites and curves that MeshConfig may name; for tests.
func TLSNames() (suites, curves []string) {
	return mesh.CipherSuites(), slices.Clone(ecdhCurves)
}

// tlsNames refuses cipher suites and curves that an Envoy would refuse.
func (m *meshReading) tlsNames(spec *meshconfig.MeshConfig) {
	const curve = "curve"
	check := func(field, what string, names, known []string) {
		for i, name := range names {
			at := fmt.Sprintf("%s[%d]", field, i)
			switch {
			case !slices.Contains(known, name):
				m.refuse(CodeNotInForce, m.root.Nearest(at), at, fmt.Sprintf("not in force: %q is no %s that every Envoy accepts; use some of %s", name, what, strings.Join(known, ", ")))
			case what == curve && slices.Contains(names[:i], name):
				m.refuse(CodeNotInForce, m.root.Nearest(at), at, fmt.Sprintf("not in force: %q is there twice, which Envoys from 1.38 on refuse; remove one of them", name))
			}
		}
	}
	check("meshMTLS.cipherSuites", "cipher suite", spec.GetMeshMTLS().GetCipherSuites(), mesh.CipherSuites())
	check("tlsDefaults.cipherSuites", "cipher suite", spec.GetTlsDefaults().GetCipherSuites(), mesh.CipherSuites())
	check("tlsDefaults.ecdhCurves", curve, spec.GetTlsDefaults().GetEcdhCurves(), ecdhCurves)
}
