package consultest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// issue makes an authority, a certificate for the servers and one for a client,
// and writes them into a directory.
func (c *Cluster) issue(dir string, addresses []string) {
	c.tb.Helper()
	now := time.Now()
	usage := []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	template := func(serial int64, name string) *x509.Certificate {
		return &x509.Certificate{
			SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: name},
			NotBefore: now.Add(-time.Hour), NotAfter: now.Add(24 * time.Hour),
		}
	}
	ca := template(1, "Consul of a test")
	ca.IsCA, ca.BasicConstraintsValid, ca.KeyUsage = true, true, x509.KeyUsageCertSign|x509.KeyUsageCRLSign
	caKey := c.key()
	c.CAFile = filepath.Join(dir, "ca.pem")
	c.write(c.CAFile, "CERTIFICATE", c.sign(ca, ca, caKey, caKey))

	server := template(2, "server."+c.options.Datacenter+".consul")
	server.DNSNames, server.ExtKeyUsage = []string{server.Subject.CommonName, "localhost"}, usage
	for _, a := range append([]string{"127.0.0.1", c.prefix + frontAddress}, addresses...) {
		server.IPAddresses = append(server.IPAddresses, net.ParseIP(a))
	}
	c.serverCert, c.serverKey = c.pair(dir, server, ca, caKey)
	client := template(3, "client."+c.options.Datacenter+".consul")
	client.DNSNames, client.ExtKeyUsage = []string{client.Subject.CommonName}, usage
	c.CertFile, c.KeyFile = c.pair(dir, client, ca, caKey)
}

// pair writes a certificate and its key.
func (c *Cluster) pair(dir string, cert, ca *x509.Certificate, caKey *ecdsa.PrivateKey) (certFile, keyFile string) {
	c.tb.Helper()
	key := c.key()
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		c.tb.Fatal(err)
	}
	name := filepath.Join(dir, cert.Subject.CommonName)
	c.write(name+".pem", "CERTIFICATE", c.sign(cert, ca, key, caKey))
	c.write(name+".key", "PRIVATE KEY", der)
	return name + ".pem", name + ".key"
}

func (c *Cluster) key() *ecdsa.PrivateKey {
	c.tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		c.tb.Fatal(err)
	}
	return key
}

func (c *Cluster) sign(cert, ca *x509.Certificate, key, caKey *ecdsa.PrivateKey) []byte {
	c.tb.Helper()
	der, err := x509.CreateCertificate(rand.Reader, cert, ca, &key.PublicKey, caKey)
	if err != nil {
		c.tb.Fatal(err)
	}
	return der
}

func (c *Cluster) write(path, kind string, der []byte) {
	c.tb.Helper()
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		c.tb.Fatal(err)
	}
}
