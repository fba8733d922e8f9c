package profile

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
)

// organization is the O of every subject.
const organization = "Fairlead"

// maxUnit is the longest organizational unit in bytes: ub-organizational-unit-name of X.520.
const maxUnit = 64

// units is the number of parts of a name.
const units = 3

// WorkloadName is who a workload is in metrics of the servers that it calls. It is in the subject
// of its certificate, and proves nothing: an identity is a SPIFFE ID alone.
//
// The subject is O=Fairlead, OU=Service, OU=Revision, OU=Name, each a part of the one before. There
// is no common name, which some clients take for the name of a host where a certificate has no
// DNS name.
type WorkloadName struct {
	// Name is the workload's; Service and Revision are its canonical ones.
	Name, Service, Revision string
}

// Fits reports whether the name can be in a certificate: each part has 1 to 64 bytes, letters,
// digits, ".", "_" and "-".
func (n WorkloadName) Fits() bool {
	for _, part := range n.units() {
		if part == "" || len(part) > maxUnit {
			return false
		}
		for _, c := range []byte(part) {
			if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '.' && c != '_' && c != '-' {
				return false
			}
		}
	}
	return true
}

func (n WorkloadName) units() [units]string { return [3]string{n.Service, n.Revision, n.Name} }

// subject has the name if it fits.
func (n WorkloadName) subject() pkix.Name {
	out := pkix.Name{Organization: []string{organization}}
	if n.Fits() {
		for _, part := range n.units() { // one below the other: not a set
			out.ExtraNames = append(out.ExtraNames, pkix.AttributeTypeAndValue{Type: unitID(), Value: part})
		}
	}
	return out
}

// unitID is the attribute organizationalUnitName of X.520.
func unitID() asn1.ObjectIdentifier { return asn1.ObjectIdentifier{2, 5, 4, 11} }

// WorkloadNameOf is the name in a certificate; the zero value if there is none.
func WorkloadNameOf(cert *x509.Certificate) WorkloadName {
	u := cert.Subject.OrganizationalUnit
	if len(u) != units {
		return WorkloadName{}
	}
	n := WorkloadName{Service: u[0], Revision: u[1], Name: u[2]}
	if !n.Fits() {
		return WorkloadName{}
	}
	return n
}
