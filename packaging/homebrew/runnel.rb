# Builds this checkout: `brew install --HEAD --formula packaging/homebrew/runnel.rb`.
class Runnel < Formula
  desc "Gateway for agent runs over HTTP"
  license "Apache-2.0"
  head File.expand_path("../..", __dir__), using: :git

  depends_on "cmake" => :build
  depends_on "rust" => :build

  def install
    %w[gateway local-agent protocol-agent connectors harness].each do |program|
      system "cargo", "install", *std_cargo_args(path: "services/#{program}")
    end
  end

  service do
    run [opt_bin/"runnel", "dev"]
    working_dir var/"runnel"
    log_path var/"log/runnel.log"
    error_log_path var/"log/runnel.log"
  end

  def post_install
    (var/"runnel").mkpath
  end

  test do
    assert_match "runnel", shell_output("#{bin}/runnel --version")
    (testpath/"runnel.toml").write "[nothing]\n"
    assert_match "nothing", shell_output("#{bin}/runnel check-config 2>&1", 1)
  end
end
