import java.util.Arrays;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;

/**
 * Sends with Apache's Java client until it is told to stop, and then says how long sends took.
 *
 * <p>Arguments: threads or callbacks, name server, topic, size of a message, how many in flight, and over how
 * many of the last seconds latencies count.
 */
public final class SendLoad {
    private static final int KEPT = 1 << 20;
    private static final long[] ENDED = new long[KEPT];
    private static final long[] TOOK = new long[KEPT];
    private static final AtomicLong COUNT = new AtomicLong();
    private static final AtomicInteger FAILED = new AtomicInteger();

    public static void main(String[] args) throws Exception {
        String topic = args[2];
        byte[] body = new byte[Integer.parseInt(args[3])];
        Arrays.fill(body, (byte) 'x');
        int inFlight = Integer.parseInt(args[4]);
        long windowNanos = (long) (Double.parseDouble(args[5]) * 1e9);
        DefaultMQProducer producer = new DefaultMQProducer("bench-java");
        producer.setNamesrvAddr(args[1]);
        producer.start();
        Runtime.getRuntime().addShutdownHook(new Thread(() -> report(windowNanos)));
        if (args[0].equals("threads")) {
            for (int i = 0; i < inFlight; i++) {
                new Thread(() -> sendInTurn(producer, topic, body)).start();
            }
        } else {
            sendByCallbacks(producer, topic, body, new Semaphore(inFlight));
        }
    }

    private static void sendInTurn(DefaultMQProducer producer, String topic, byte[] body) {
        while (true) {
            long began = System.nanoTime();
            try {
                producer.send(new Message(topic, body));
                took(began);
            } catch (Exception error) {
                FAILED.incrementAndGet();
            }
        }
    }

    private static void sendByCallbacks(DefaultMQProducer producer, String topic, byte[] body, Semaphore room)
            throws Exception {
        while (true) {
            room.acquire();
            long began = System.nanoTime();
            producer.send(new Message(topic, body), new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    took(began);
                    room.release();
                }

                @Override
                public void onException(Throwable error) {
                    FAILED.incrementAndGet();
                    room.release();
                }
            });
        }
    }

    private static void took(long began) {
        long now = System.nanoTime();
        int place = (int) (COUNT.getAndIncrement() & (KEPT - 1));
        TOOK[place] = now - began;
        ENDED[place] = now;
    }

    private static void report(long windowNanos) {
        long since = System.nanoTime() - windowNanos;
        int count = (int) Math.min(COUNT.get(), KEPT);
        long[] kept = new long[count];
        int found = 0;
        for (int i = 0; i < count; i++) {
            if (ENDED[i] >= since) {
                kept[found++] = TOOK[i];
            }
        }
        Arrays.sort(kept, 0, found);
        System.out.printf("{\"p50_ms\": %.4f, \"p99_ms\": %.4f, \"failed\": %d}%n",
            found == 0 ? 0.0 : kept[found / 2] / 1e6, found == 0 ? 0.0 : kept[(int) (found * 0.99)] / 1e6,
            FAILED.get());
        System.out.flush();
    }
}
